// A SentencePiece .model (unigram or BPE), by the SentencePiece library.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// files: the model, and the tokenizer_config.json where there is one; `config` is that one parsed, null without it.
// Errors: ConfigError for bytes that are no model.
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(const std::string& name, std::vector<TokenizerFile> files,
                                                              const Json& config);

}  // namespace orthant
