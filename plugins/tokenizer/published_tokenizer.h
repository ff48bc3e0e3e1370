// Tokenizers that were published: a tokenizer.json with a BPE model (Hugging Face tokenizers), or a SentencePiece
// .model. What a file asks for and is not done here is refused when it is loaded, by file and place, never ignored.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

class JsonField;

// files: as Tokenizer::files() has them; the first is named tokenizer.json or tokenizer.model. Errors: ConfigError for
// one that is damaged, or that asks for what is not done here.
std::shared_ptr<const Tokenizer> make_published_tokenizer(const std::string& name, std::vector<TokenizerFile> files);

// The same of a tokenizer.json's text, without a file: `config` is the text beside it, empty for none.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string name, std::string text, std::string config = "");

// `special` as a tokenizer_config.json says otherwise; pad and unk that are none of this vocabulary are none. Errors:
// ConfigError for such a bos or eos.
SpecialTokens read_special(const JsonField& config, const Tokenizer& tokenizer, SpecialTokens special);

}  // namespace orthant
