// Decoders: how the tokens of a tokenizer.json become text again.
//
// Internal to plugins/tokenizer. Thread safety: constant.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/tokenizer/json_field.h"
#include "plugins/tokenizer/normalizer.h"

namespace orthant {

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens, const TextGrowth& growth) const = 0;
};

// One after another; what is left is joined.
using Decoder = std::vector<std::unique_ptr<DecoderStep>>;

// Errors: Error for tokens that become too long (TextGrowth).
void decode_tokens(const Decoder& decoder, std::vector<std::string>& tokens);

// ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence. Errors: ConfigError for any other.
Decoder read_decoder(const JsonField& field);

}  // namespace orthant
