#include "plugins/tokenizer/published_tokenizer.h"

#include <orthant/error.h>

#include <span>
#include <utility>

#include "core/base/json.h"
#include "plugins/tokenizer/bpe_tokenizer.h"
#include "plugins/tokenizer/json_field.h"
#include "plugins/tokenizer/sentencepiece_tokenizer.h"

namespace orthant {
namespace {

Json parse(const std::string& text, const std::string& name) {
  try {
    return parse_json(std::as_bytes(std::span(text)), fmt::format("tokenizer '{}'", name));
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

// null where there is no configuration.
Json parse_config(const std::vector<TokenizerFile>& files, const std::string& name) {
  for (const TokenizerFile& file : files) {
    if (file.name == tokenizer_config_file) {
      return parse(file.bytes, fmt::format("{}, {}", name, tokenizer_config_file));
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<const Tokenizer> make_published_tokenizer(const std::string& name, std::vector<TokenizerFile> files) {
  if (files.front().name == "tokenizer.model") {
    const Json config = parse_config(files, name);
    return make_sentencepiece_tokenizer(name, std::move(files), config);
  }
  const Json json = parse(files.front().bytes, name), config = parse_config(files, name);
  return std::make_shared<BpeTokenizer>(name, std::move(files), json, config);
}

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string name, std::string text, std::string config) {
  std::vector<TokenizerFile> files = {{"tokenizer.json", std::move(text)}};
  if (!config.empty()) {
    files.push_back({tokenizer_config_file, std::move(config)});
  }
  return make_published_tokenizer(name, std::move(files));
}

SpecialTokens read_special(const JsonField& config, const Tokenizer& tokenizer, SpecialTokens special) {
  for (const auto& [key, id] : {std::pair{"bos_token", &special.bos},
                                {"eos_token", &special.eos},
                                {"unk_token", &special.unk},
                                {"pad_token", &special.pad}}) {
    if (const auto field = config.find(key)) {
      const std::string token = field->value().is_object() ? field->at("content").text() : field->text();
      *id = tokenizer.id_of(token);
      const bool needed = id == &special.bos || id == &special.eos;  // a .model's padding is often named beside it
      if (!*id && needed) {
        field->refuse("'{}' is no token of the {}", token, tokenizer.files().front().name);
      }
    }
  }
  special.bos_first = special.bos.has_value() && config.flag("add_bos_token", special.bos_first);
  return special;
}

}  // namespace orthant
