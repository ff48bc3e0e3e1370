// A SentencePiece .model as a tokenizer.json and a tokenizer_config.json, which Hugging Face's transformers reads with
// the same ids.
//
// transformers makes a tokenizer of a .model by itself, by rules of the model's class and not of the file: it leaves
// out the space before the first word, for one. docs/guides/export.md says where ids can differ all the same.
#pragma once

#include <nlohmann/json.hpp>

#include "core/tokenizer/tokenizer_module.h"

namespace orthant {

// REQUIRES: a tokenizer of a .model. Of a tokenizer_config.json beside it the special tokens, chat_template and
// model_max_length are taken over: the rest is for another class. has_template: a chat template goes with the files.
HuggingFaceFiles hugging_face_files(const Tokenizer& sentencepiece, bool has_template = false);

// The tokenizer_config.json of a tokenizer.json that came without: the class that takes the file as it is, and the
// special tokens.
nlohmann::ordered_json minimal_tokenizer_config(const Tokenizer& tokenizer);

}  // namespace orthant
