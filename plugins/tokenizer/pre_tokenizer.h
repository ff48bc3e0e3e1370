// Pre-tokenizers: how a text is cut into the words that a BPE model encodes one by one.
//
// Internal to plugins/tokenizer. Thread safety: constant; the work belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/tokenizer/json_field.h"
#include "plugins/tokenizer/regex.h"

namespace orthant {

// A text and its pieces so far, in order; none is empty. What steps write between them is reused.
struct PieceWork {
  RegexWork regex;
  std::string_view text;         // the caller's, or buffers[current]
  std::vector<TextSpan> pieces;  // of text
  bool at_start = false;         // the text begins the whole input
  std::string buffers[2];
  std::size_t current = 0;
  std::vector<TextSpan> next;
  struct Part {
    TextSpan span;
    bool is_match;
  };
  std::vector<Part> parts;
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual void apply(PieceWork& work) const = 0;
};

struct PreTokenizer {
  std::vector<std::unique_ptr<PreTokenizerStep>> steps;
  bool byte_level = false;  // the model's characters stand for bytes
};

// ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace and Sequence. Errors: ConfigError for
// any other.
PreTokenizer read_pre_tokenizer(const JsonField& field);

// Cuts `text`: work.text and work.pieces.
void cut_pieces(const PreTokenizer& pre_tokenizer, std::string_view text, bool at_start, PieceWork& work);

}  // namespace orthant
