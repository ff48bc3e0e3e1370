#include "core/tokenizer/tokenizer.h"

#include <orthant/error.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/json.h"
#include "core/tokenizer/bpe_tokenizer.h"
#include "core/tokenizer/hugging_face_files.h"
#include "core/tokenizer/json_field.h"
#include "core/tokenizer/sentencepiece_tokenizer.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* config_name = "tokenizer_config.json";
constexpr std::uintmax_t largest_file = std::uintmax_t{1} << 30;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer("bytes", {}) {}

  std::unique_ptr<Encoder> encoder() const override {
    class Bytes final : public Encoder {
     public:
      void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
        for (const char c : text) {
          ids.push_back(static_cast<unsigned char>(c));
        }
      }
    };
    return std::make_unique<Bytes>();
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < 256, "the tokenizer \"bytes\" has no token {}", id);
      text += static_cast<char>(id);
    }
    return text;
  }
  std::optional<std::int32_t> id_of(std::string_view token) const override {
    return token.size() == 1 ? std::optional<std::int32_t>(static_cast<unsigned char>(token[0])) : std::nullopt;
  }
  std::int64_t vocabulary() const override { return 256; }
};

std::string read_whole(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::is_regular_file(path, error) ? fs::file_size(path, error) : 0;
  if (error || size == 0 || size > largest_file) {
    throw ConfigError(fmt::format(
        "the tokenizer '{}' {}; expected \"bytes\", a tokenizer.json, a SentencePiece .model or a folder with one",
        path.string(),
        error == std::errc::no_such_file_or_directory ? "is not there"
        : error                                       ? "cannot be read: " + error.message()
        : size == 0                                   ? "is no file, or empty"
                                                      : "is larger than 1 GiB"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    throw ConfigError(fmt::format("the tokenizer '{}' cannot be read", path.string()));
  }
  return bytes;
}

Json parse(const std::string& text, const std::string& name) {
  try {
    return parse_json(std::as_bytes(std::span(text)), fmt::format("tokenizer '{}'", name));
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

Json parse_config(const std::string& text, const std::string& name) {
  return text.empty() ? Json() : parse(text, fmt::format("{}, {}", name, config_name));
}

// Of the tokenizer_config.json in the tokenizer's folder; empty where there is none.
std::string read_config_beside(const fs::path& path) {
  const fs::path config = path.parent_path() / config_name;
  std::error_code error;
  return fs::status(config, error).type() != fs::file_type::not_found ? read_whole(config) : "";
}

// The file that ids follow from, and the configuration where there is one.
std::vector<TokenizerFile> with_config(TokenizerFile first, std::string config) {
  std::vector<TokenizerFile> files = {std::move(first)};
  if (!config.empty()) {
    files.push_back({config_name, std::move(config)});
  }
  return files;
}

// What else was published with the file, where it has the name that it was published under. A tokenizer.json that
// `orthant export` made of a .model is made anew.
void add_files_beside(const fs::path& path, std::vector<TokenizerFile>& files) {
  const std::vector<std::string> names = published_tokenizer_files();
  const std::string own = path.filename().string();
  if (std::find(names.begin(), names.end(), own) == names.end()) {
    return;
  }
  std::error_code error;
  for (const std::string& name : names) {
    const bool made = name == "tokenizer.json" && own == "tokenizer.model";
    if (name != own && name != config_name && !made && fs::is_regular_file(path.parent_path() / name, error) &&
        fs::file_size(path.parent_path() / name, error) > 0) {
      files.push_back({name, read_whole(path.parent_path() / name)});
    }
  }
}

// The file that ids follow from; empty where there is none. A tokenizer.json is taken before a tokenizer.model, but not
// one that `orthant export` made of that.
fs::path tokenizer_file_in(const fs::path& folder) {
  std::error_code error;
  const fs::path json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  if (!fs::exists(model, error)) {
    return fs::exists(json, error) ? json : fs::path();
  }
  const bool made = !fs::exists(json, error) || (fs::exists(folder / config_name, error) &&
                                                 was_made_of_model(read_whole(json), read_whole(folder / config_name)));
  return made ? model : json;
}

std::uint64_t hash_of(const std::string& bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

Tokenizer::Tokenizer(std::string name, std::vector<TokenizerFile> files)
    : name_(std::move(name)), files_(std::move(files)) {
  if (!files_.empty()) {
    hash_ = hash_of(files_.front().bytes);
  }
}

void Tokenizer::read_special(const JsonField& config) {
  for (const auto& [key, id] : {std::pair{"bos_token", &special_.bos},
                                {"eos_token", &special_.eos},
                                {"unk_token", &special_.unk},
                                {"pad_token", &special_.pad}}) {
    if (const auto field = config.find(key)) {
      const std::string token = field->value().is_object() ? field->at("content").text() : field->text();
      *id = id_of(token);
      const bool needed = id == &special_.bos || id == &special_.eos;  // a .model's padding is often named beside it
      if (!*id && needed) {
        field->refuse("'{}' is no token of the {}", token, files().front().name);
      }
    }
  }
  special_.bos_first = special_.bos.has_value() && config.flag("add_bos_token", special_.bos_first);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->encode(text, ids);
  return ids;
}

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string name, std::string text, std::string config) {
  const Json json = parse(text, name);
  const Json beside = parse_config(config, name);
  return std::make_shared<BpeTokenizer>(name, with_config({"tokenizer.json", std::move(text)}, std::move(config)), json,
                                        beside);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") {
    return std::make_shared<ByteTokenizer>();
  }
  fs::path path = name;
  std::error_code error;  // of a name that no file can have: told below
  if (fs::is_directory(path, error)) {
    path = tokenizer_file_in(path);
    if (path.empty()) {
      throw ConfigError(fmt::format("the folder '{}' has neither a tokenizer.json nor a tokenizer.model", name));
    }
  }
  if (path.extension() == ".json") {
    std::string text = read_whole(path), config = read_config_beside(path);
    const Json json = parse(text, name), beside = parse_config(config, name);
    std::vector<TokenizerFile> files = with_config({"tokenizer.json", std::move(text)}, std::move(config));
    add_files_beside(path, files);
    return std::make_shared<BpeTokenizer>(name, std::move(files), json, beside);
  }
  if (path.extension() == ".model") {
    std::string config = read_config_beside(path);
    const Json beside = parse_config(config, name);
    std::vector<TokenizerFile> files = with_config({"tokenizer.model", read_whole(path)}, std::move(config));
    add_files_beside(path, files);
    return make_sentencepiece_tokenizer(name, std::move(files), beside);
  }
  throw ConfigError(
      fmt::format("the tokenizer '{}' is not {}; expected \"bytes\", a tokenizer.json, a SentencePiece .model or a "
                  "folder with one",
                  name, fs::exists(path, error) ? "known by its name" : "there"));
}

std::vector<std::string> published_tokenizer_files() {
  return {"tokenizer.json", config_name,  "tokenizer.model",     "special_tokens_map.json", "added_tokens.json",
          "vocab.json",     "merges.txt", "chat_template.jinja", "tiktoken.model"};
}

std::optional<std::uint64_t> tokenizer_hash_in(const fs::path& folder) {
  const fs::path file = tokenizer_file_in(folder);
  return file.empty() ? std::nullopt : std::optional(hash_of(read_whole(file)));
}

}  // namespace orthant
