#include "apps/pretrained/text_export.h"

#include <orthant/error.h>

#include <algorithm>
#include <utility>

#include "core/base/json.h"
#include "core/base/text_file.h"
#include "core/run/run_text_rules.h"
#include "core/run/run_tokenizer.h"
#include "core/run/starting_weights.h"
#include "core/tokenizer/tokenizer_module.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

constexpr const char* generation_name = "generation_config.json";
constexpr const char* template_name = "chat_template.jinja";

std::string dumped(const Ordered& json, int indent = -1) {
  return json.dump(indent, ' ', false, Ordered::error_handler_t::replace);
}

// An object, empty where the text is none.
Ordered object_of(const std::string& text) {
  Ordered json = Ordered::parse(text, nullptr, false);
  return json.is_object() ? json : Ordered::object();
}

}  // namespace

TextExport::TextExport(const fs::path& run) : rules_(text_rules_in(run)) {
  published_generation_ = read_text_file(run / pretrained_folder / generation_name).value_or("");
  read_files(run);
  put_template();
}

void TextExport::add(const std::string& name, std::string text) {
  for (TokenizerFile& file : files_) {
    if (file.name == name) {
      file.bytes = std::move(text);
      return;
    }
  }
  files_.push_back({name, std::move(text)});
}

const std::string* TextExport::find(const std::string& name) const {
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file.name == name; });
  return found == files_.end() ? nullptr : &found->bytes;
}

void TextExport::read_files(const fs::path& run) {
  const fs::path own = run / tokenizer_folder, published = run / pretrained_folder;
  const std::optional<std::uint64_t> hash = tokenizer_hash_in(own);
  std::vector<fs::path> folders;  // what the first has is not taken of the second
  if (hash.has_value()) {
    folders.push_back(own);
  }
  if (!hash.has_value() || hash == tokenizer_hash_in(published)) {
    folders.push_back(published);
  }
  for (const fs::path& folder : folders) {
    for (const std::string& name : published_tokenizer_files()) {
      if (find(name) != nullptr) {
        continue;
      }
      if (std::optional<std::string> text = read_text_file(folder / name)) {
        files_.push_back({name, std::move(*text)});
      }
    }
  }
  read_tokenizer(folders.front(), hash.has_value());
}

// A tokenizer that is not read here is written as it came.
void TextExport::read_tokenizer(const fs::path& folder, bool of_run) {
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    if (tokenizer_hash_in(folder).has_value()) {
      tokenizer = load_tokenizer(folder.string());
    }
  } catch (const ConfigError& error) {
    notes_.push_back(fmt::format("the ids of the tokenizer's special tokens are not known: {}", error.what()));
  }
  if (tokenizer == nullptr) {
    return;
  }
  special_ = tokenizer->special();
  const bool has_json = find("tokenizer.json") != nullptr;
  if (tokenizer->files().front().name == "tokenizer.model" && !has_json && of_run) {
    HuggingFaceFiles made = tokenizer_module().hugging_face_files(*tokenizer, !rules_.chat_template.empty());
    for (TokenizerFile& file : made.files) {
      add(file.name, std::move(file.bytes));
    }
    notes_.insert(notes_.end(), made.notes.begin(), made.notes.end());
  } else if (has_json && find(tokenizer_config_file) == nullptr) {
    add(tokenizer_config_file, dumped(tokenizer_module().minimal_config(*tokenizer), 2) + "\n");
  }
}

void TextExport::put_template() {
  if (rules_.chat_template.empty() || files_.empty()) {
    return;
  }
  const std::string* const there = find(template_name);
  const std::string* const config = find(tokenizer_config_file);
  Ordered json = config == nullptr ? Ordered::object() : object_of(*config);
  const bool in_config = json.contains("chat_template");
  if ((there != nullptr && *there != rules_.chat_template) || (there == nullptr && in_config)) {
    notes_.push_back(
        "chat_template.jinja is the template that the run was trained by (data.chat_template), in place of the one "
        "that "
        "was published");
  }
  if (in_config) {  // older versions of transformers read it there
    json["chat_template"] = rules_.chat_template;
    add(tokenizer_config_file, dumped(json, 2) + "\n");
  }
  add(template_name, rules_.chat_template);
}

// As it came, where it says the same ends. Empty: there is nothing to say.
std::string TextExport::generation_config(std::int64_t vocabulary) const {
  std::vector<std::int32_t> ends = rules_.end_ids;
  if (ends.empty() && special_.eos.has_value()) {
    ends = {*special_.eos};
  }
  std::erase_if(ends, [&](std::int32_t id) { return id >= vocabulary; });
  Ordered json = object_of(published_generation_);
  const Ordered said = json.contains("eos_token_id") ? json["eos_token_id"] : Ordered();
  const Ordered list = said.is_array() ? said : Ordered::array({said});
  if (ends.empty() || list == Ordered(ends)) {
    return published_generation_;
  }
  const auto put = [&](const char* key, const std::optional<std::int32_t>& id) {
    if (id.has_value() && (!json.contains(key) || json[key].is_null())) {
      json[key] = *id;
    }
  };
  put("bos_token_id", special_.bos);
  json["eos_token_id"] = ends.size() == 1 ? Ordered(ends.front()) : Ordered(ends);
  put("pad_token_id", special_.pad);
  return dumped(json, 2) + "\n";
}

std::vector<std::string> TextExport::write(const Workshop& workshop, std::int64_t vocabulary) const {
  for (const TokenizerFile& file : files_) {
    workshop.write_text(file.name, file.bytes);
  }
  if (const std::string generation = generation_config(vocabulary); !generation.empty()) {
    workshop.write_text(generation_name, generation);
  }
  std::vector<std::string> notes = notes_;
  if (!rules_.end_texts.empty() && !files_.empty() && !object_of(published_generation_).contains("stop_strings")) {
    const std::string texts = dumped(Ordered(rules_.end_texts));
    notes.push_back(fmt::format(
        "an answer ends with one of the texts {}, which transformers has to be told: generate(..., stop_strings={}, "
        "tokenizer=tokenizer)",
        texts, texts));
  }
  return notes;
}

}  // namespace orthant
