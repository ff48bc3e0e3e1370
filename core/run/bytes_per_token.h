// Bytes of text that a token of what is held out stands for: what makes bits per byte of nats per token, so that models
// with different tokenizers compare.
#pragma once

#include <orthant/settings.h>

#include <map>
#include <optional>
#include <string>

#include "core/data/batch.h"

namespace orthant {

struct BytesPerToken {
  std::optional<double> all;           // of what Validation::loss is of; nothing: not known
  std::map<std::string, double> sets;  // of the validation sets by name, those that are known
};

// Means over the tokens that count in the loss, ends of texts among them (which have no bytes). Of bytes it is 1.
// Nothing is known of sources without a text, of pairs, and of token files whose tokenizer was not given.
BytesPerToken bytes_per_token(const BatchSource& source, const Settings& settings);

// A loss in nats per token as bits per byte.
double bits_per_byte(double nats_per_token, double bytes_per_token);

}  // namespace orthant
