#include "settings.h"

#include <algorithm>

#include <orthant/error.h>

namespace orthant::encoder {

const Keys<EncoderKeys>& EncoderKeys::keys() {
  static const auto all =
      Keys<EncoderKeys>()
          .add("post_norm", &EncoderKeys::post_norm,
               "bert: whether norms stand behind the sum of a branch and what entered it (BERT); else before a branch.")
          .after("norm_place")
          .add("embedding_norm", &EncoderKeys::embedding_norm,
               "bert: a norm behind the embedding. Before a branch, the first block then has none before attention.")
          .add("dense_biases", &EncoderKeys::dense_biases,
               "bert: whether both products of a dense FFN, and the head's transform, have biases.")
          .choice("gelu", &EncoderKeys::gelu, {"tanh", "exact"},
                  "bert: GELU of dense FFNs and of the head's transform: approximated, as the first BERT had it, or "
                  "exact, as published ones have it. Exact: on the host.")
          .add("token_types", &EncoderKeys::token_types,
               "bert: rows of a table of token types, of which sources give each token the first; 0: no table.",
               between(0, 64))
          .add("full_attention_first", &EncoderKeys::full_attention_first,
               "bert: full_attention_every counts from the first block on, which then has no window (ModernBERT).")
          .after("full_attention_every")
          .add("classes", &EncoderKeys::classes,
               "bert: what the head tells apart: so many classes; 0: the tokens of the vocabulary.",
               between(0, 1 << 20))
          .choice("pooling", &EncoderKeys::pooling, {"cls", "mean"},
                  "bert: what a token's classes are told from: itself (of a text the first one), or the mean of all "
                  "tokens of its text.");
  return all;
}

const Keys<FrameKeys>& FrameKeys::keys() {
  static const auto all =
      Keys<FrameKeys>()
          .add("frame", &FrameKeys::frame,
               "masked, labelled: whether a text stands between two ids of its own, as BERT's [CLS] and [SEP].")
          .add("first_id", &FrameKeys::first_id, "frame: the id before a text; -1: the tokenizer's vocabulary + 1.",
               between(-1, 1 << 24))
          .add("last_id", &FrameKeys::last_id, "frame: the id behind a text; -1: the tokenizer's vocabulary + 2.",
               between(-1, 1 << 24))
          .add("mask_id", &FrameKeys::mask_id, "masked: the id of a masked token; -1: the tokenizer's vocabulary.",
               between(-1, 1 << 24));
  return all;
}

Frame::Frame(const FrameKeys& keys, std::int64_t of_texts) : around(keys.frame), vocabulary(of_texts) {
  const auto id = [&](std::int64_t written, std::int64_t behind) {
    const std::int64_t chosen = written < 0 ? of_texts + behind : written;
    vocabulary = std::max(vocabulary, chosen + 1);
    return static_cast<std::int32_t>(chosen);
  };
  mask = id(keys.mask_id, 0);
  first = id(keys.first_id, 1);
  last = id(keys.last_id, 2);
}

std::int64_t text_positions(const Settings& s) {
  const std::int64_t left = s.data.sequence_length - (frame_keys(s).frame ? 2 : 0);
  if (left < 2) {
    throw SettingError("data.sequence_length",
                       fmt::format("[data] sequence_length: {} positions leave {} for a text\nwrite more, or frame = "
                                   "false",
                                   s.data.sequence_length, left));
  }
  return left;
}

}  // namespace orthant::encoder
