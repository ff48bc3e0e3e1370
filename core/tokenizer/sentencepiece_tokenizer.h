// A SentencePiece .model (unigram or BPE), by the SentencePiece library.
#pragma once

#include <memory>
#include <string>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

// Errors: ConfigError for bytes that are no model.
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(const std::string& name, TokenizerFile file);

}  // namespace orthant
