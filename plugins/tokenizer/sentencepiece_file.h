// What a SentencePiece .model says: pieces, scores, and how texts are normalized.
//
// The library's headers do not tell all of it, so the protocol buffer (sentencepiece_model.proto) is read here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct SentencePieceFile {
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  enum class Model { unigram = 1, bpe = 2, word = 3, characters = 4 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
    bool is_text() const { return type == Type::normal || type == Type::user_defined; }  // looked for in texts
  };
  std::vector<Piece> pieces;  // the id is the place
  Model model = Model::unigram;
  bool space_behind_words = false;  // treat_whitespace_as_suffix
  std::string charsmap;             // precompiled rules of the normalizer; empty: characters stay as they are
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool changes_decoded_text = false;  // a denormalizer with rules

  std::int64_t count(Type type) const;
};

// Errors: ConfigError for bytes that are no such file. Fields that are not named above are passed over.
SentencePieceFile read_sentencepiece_file(std::string_view bytes);

}  // namespace orthant
