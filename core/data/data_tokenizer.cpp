#include "core/data/data_tokenizer.h"

#include <orthant/error.h>
#include <orthant/text_tokens.h>

namespace orthant {

std::shared_ptr<const Tokenizer> tokenizer_of(const DataSettings& data) {
  try {
    return load_tokenizer(data.tokenizer);
  } catch (const ConfigError& error) {
    throw SettingError("data.tokenizer", error.what());
  }
}

std::shared_ptr<const Tokenizer> fitting_tokenizer(const Settings& settings) {
  std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(settings.data);
  require_vocabulary(settings, fmt::format("'{}'", tokenizer->name()), tokenizer->vocabulary());
  return tokenizer;
}

void require_vocabulary(const Settings& settings, const std::string& name, std::int64_t vocabulary) {
  if (settings.model.vocab_size < vocabulary) {
    throw SettingError(
        "model.vocab_size",
        fmt::format("model.vocab_size: {} is too small for {}, whose tokens are 0 to {}; write {} or more",
                    settings.model.vocab_size, name, vocabulary - 1, vocabulary));
  }
}

void require_files(const DataSettings& data) {
  if (data.path.empty()) {
    throw ConfigError("data.path: name at least one file, or use data.source = \"synthetic\"");
  }
}

namespace {

class OfTokenizer final : public TextTokens {
 public:
  explicit OfTokenizer(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::vector<std::int32_t> encode(std::string_view text) const override { return tokenizer_->encode(text); }
  std::int64_t vocabulary() const override { return tokenizer_->vocabulary(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace

std::shared_ptr<const TextTokens> text_tokens(const Settings& settings) {
  return std::make_shared<OfTokenizer>(tokenizer_of(settings.data));
}

}  // namespace orthant
