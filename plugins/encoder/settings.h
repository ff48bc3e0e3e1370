// What encoders and their sources are told beside what every model is: keys in [model] and [data].
#pragma once

#include <cstdint>
#include <string>

#include <orthant/keys.h>
#include <orthant/settings.h>

namespace orthant::encoder {

// Of a text: what its first token says, or the mean over its tokens.
enum class Pooling { cls, mean };

enum class GeluForm { tanh, exact };

struct EncoderKeys {
  bool post_norm = false;             // x = norm(x + f(x)), as BERT; else x + f(norm(x))
  bool embedding_norm = false;        // a norm behind the embedding; the first block then has none before attention
  bool dense_biases = false;          // of both products of a dense FFN, and of the head's transform
  GeluForm gelu = GeluForm::tanh;     // of dense FFNs and the transform
  std::int64_t token_types = 0;       // rows of a table of token types; 0: there is none
  bool full_attention_first = false;  // blocks 0, n, 2 n .. have no window, with n = full_attention_every
  std::int64_t classes = 0;           // of the head; 0: the vocabulary
  Pooling pooling = Pooling::cls;
  static const Keys<EncoderKeys>& keys();
};

inline EncoderKeys encoder_keys(const Settings& s) {
  return read_keys<EncoderKeys>(kind_values(s, "model"));
}

// How texts stand in a sequence: of both sources.
struct FrameKeys {
  bool frame = true;  // a text stands between two ids of its own, [CLS] and [SEP] in BERT
  std::int64_t first_id = -1, last_id = -1;
  std::int64_t mask_id = -1;
  static const Keys<FrameKeys>& keys();
};

// The ids that no text has: by default those behind the tokenizer's.
struct Frame {
  Frame(const FrameKeys& keys, std::int64_t of_texts);
  bool around = true;
  std::int32_t mask = 0, first = 0, last = 0;
  std::int64_t vocabulary = 0;  // all ids are below it
};

inline FrameKeys frame_keys(const Settings& s) {
  return read_keys<FrameKeys>(kind_values(s, "data"));
}

// Positions that are left for a text. Errors: SettingError where there are none.
std::int64_t text_positions(const Settings& settings);

}  // namespace orthant::encoder
