// Texts as the tokens of data.tokenizer, for sources of plugins that read files of their own. Thread safety: constant.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <orthant/abi/text_tokens.h>

namespace orthant {

struct Settings;

class TextTokens {
 public:
  virtual ~TextTokens() = default;
  // Ids without a beginning and an end. Errors: Error for what the vocabulary cannot say.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  virtual std::int64_t vocabulary() const = 0;  // ids are below it
};

// Errors: SettingError of data.tokenizer for files that are missing or damaged.
std::shared_ptr<const TextTokens> text_tokens(const Settings& settings);

}  // namespace orthant
