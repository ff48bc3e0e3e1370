// A SentencePiece .model as a tokenizer.json and a tokenizer_config.json, which Hugging Face's transformers reads with
// the same ids.
//
// transformers makes a tokenizer of a .model by itself, by rules of the model's class and not of the file: it leaves
// out the space before the first word, for one. docs/guides/export.md says where ids can differ all the same.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

struct HuggingFaceFiles {
  std::vector<TokenizerFile> files;  // none where no tokenizer.json has the same ids
  std::vector<std::string> notes;    // why there are none, or where ids can differ
};

// REQUIRES: a tokenizer of a .model. Of a tokenizer_config.json beside it the special tokens, chat_template and
// model_max_length are taken over: the rest is for another class. has_template: a chat template goes with the files.
HuggingFaceFiles hugging_face_files(const Tokenizer& sentencepiece, bool has_template = false);

// The tokenizer_config.json of a tokenizer.json that came without: the class that takes the file as it is, and the
// special tokens.
nlohmann::ordered_json minimal_tokenizer_config(const Tokenizer& tokenizer);

// Whether such a file was made of the .model beside it, as `config`, the tokenizer_config.json, says, and not changed
// since. Then the .model is what data and runs were made with.
bool was_made_of_model(std::string_view tokenizer_json, std::string_view config);

}  // namespace orthant
