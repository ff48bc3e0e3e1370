// A SentencePiece model as a tokenizer.json: BPE or Unigram, as Hugging Face's tokenizers library reads it.
//
// Internal to plugins/tokenizer. hugging_face_files.h is the way in.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/tokenizer/tokenizer.h"
#include "plugins/tokenizer/sentencepiece_file.h"

namespace orthant {

// Why no tokenizer.json does what the model does; empty: one may.
std::string why_no_json(const SentencePieceFile& file);

// REQUIRES: why_no_json(file) is empty.
nlohmann::ordered_json sentencepiece_json(const SentencePieceFile& file, const SpecialTokens& special);

}  // namespace orthant
