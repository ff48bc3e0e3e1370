// BpeTokenizer: a tokenizer.json with a BPE model.
//
//   text -> added tokens -> normalizer -> added tokens that are normalized -> pre-tokenizer -> model
//
// Internal to plugins/tokenizer: include it from .cpp files only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"
#include "plugins/tokenizer/added_tokens.h"
#include "plugins/tokenizer/bpe_model.h"
#include "plugins/tokenizer/decoder.h"
#include "plugins/tokenizer/normalizer.h"
#include "plugins/tokenizer/pre_tokenizer.h"

namespace orthant {

class BpeTokenizer final : public Tokenizer {
 public:
  // `config`: the JSON of the tokenizer_config.json beside it, or null. Errors: ConfigError naming file and place.
  BpeTokenizer(const std::string& name, std::vector<TokenizerFile> files, const Json& json, const Json& config);

  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  friend class BpeEncoder;
  void read_tokens(const JsonField& root);
  void put_token(const std::string& token, std::int32_t id, const JsonField& place);
  void read_template(const JsonField& field);

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<BpeModel> model_;
  Decoder decoder_;
  bool has_decoder_ = false;
  AddedTokens plain_, normalized_;                  // looked for before, behind the normalizer
  std::vector<std::optional<std::string>> tokens_;  // by id
  std::unordered_map<std::string, std::int32_t> ids_;
};

}  // namespace orthant
