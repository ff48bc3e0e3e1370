// Masked language modelling (Devlin et al., "BERT", 2019, section 3.1): some tokens of a text are labels, and most of
// these are hidden.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/keys.h>
#include <orthant/random.h>
#include <orthant/source.h>

#include "settings.h"

namespace orthant::encoder {

struct MaskKeys {
  double mask_rate = 0.15;    // of the tokens of texts: they are labels
  double masked_share = 0.8;  // of these: the token becomes mask_id,
  double random_share = 0.1;  // or another one by chance; the others stay
  bool whole_words = false;   // all tokens of a word are labels, or none
  static const Keys<MaskKeys>& keys();
};

// Which tokens of a training or held-out set: a function of the seed and of a token's number alone.
struct MaskDraws {
  std::uint64_t seed = 0;
  bool held_out = false;
  std::uint64_t first_token = 0;  // number of the sequence's first position: sequence * positions

  // Of the token at a position: in [0, 2^32) whether it is a label, what becomes of it, and which other token.
  struct Draw {
    std::uint32_t label, what, other;
  };
  Draw at(std::int64_t position) const;
};

// The text that a model is given, and its labels: -1 but for the tokens that were chosen. word_begins: for whole words,
// whether a token begins one; else empty. at: the position of the text's first token, behind the frame's first id.
//   token u is a label if label < rate * 2^32, by its own draw or that of its word's first token
//   it is mask_id if what < masked * 2^32, a random id of texts if what < (masked + random) * 2^32, else itself
SequenceDocument masked_text(const std::vector<std::int32_t>& text, const std::vector<bool>& word_begins,
                             std::int64_t at, const MaskKeys& keys, const MaskDraws& draws, std::int32_t mask_id,
                             std::int64_t ids_of_texts);

// Of bytes: whether each begins a word. Letters, digits and what lies beyond ASCII go on with a word of such.
std::vector<bool> words_of_bytes(const std::vector<std::int32_t>& text);

// Puts the frame's ids around a text, without labels, and gives every token the first type of `types`.
void put_frame(SequenceDocument& text, const Frame& frame, std::int64_t types);

}  // namespace orthant::encoder
