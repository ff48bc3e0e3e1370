// A new SentencePiece tokenizer from sentences.
#pragma once

#include <functional>
#include <string>

#include "core/tokenizer/tokenizer_module.h"

namespace orthant {

// Bytes of a .model. Texts stay what they are (no normalization), and bytes that no token has are tokens of their own,
// so decode(encode(x)) is x for UTF-8 without U+2581, the library's own sign for a space. `next` gives a sentence each
// time, and false at the end. Equal sentences and options give equal bytes; the number of threads is written into them.
// Errors: ConfigError for no text, too few different ones, or a vocabulary that is too large or too small.
std::string train_tokenizer(const TrainTokenizerOptions& options, const std::function<bool(std::string&)>& next);

}  // namespace orthant
