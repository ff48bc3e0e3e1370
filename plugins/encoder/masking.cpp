#include "masking.h"

#include <cmath>

namespace orthant::encoder {

const Keys<MaskKeys>& MaskKeys::keys() {
  static const auto all =
      Keys<MaskKeys>()
          .add("mask_rate", &MaskKeys::mask_rate, "masked: share of the tokens that are labels.", between(0.01, 0.9))
          .add("masked_share", &MaskKeys::masked_share, "masked: share of the labels whose token becomes mask_id.",
               between(0, 1))
          .add("random_share", &MaskKeys::random_share,
               "masked: share of the labels whose token becomes another by chance; the others stay as they are.",
               between(0, 1))
          .add("whole_words", &MaskKeys::whole_words,
               "masked: whether all tokens of a word are labels, or none. With tokenizer \"bytes\" alone.");
  return all;
}

MaskDraws::Draw MaskDraws::at(std::int64_t position) const {
  const RandomKey key{seed, Purpose::data_order, held_out ? 0x4D41u : 0x4D40u, 0};
  const Philox4 drawn = philox(key, first_token + static_cast<std::uint64_t>(position));
  return {drawn.v[0], drawn.v[1], drawn.v[2]};
}

SequenceDocument masked_text(const std::vector<std::int32_t>& text, const std::vector<bool>& word_begins,
                             std::int64_t at, const MaskKeys& keys, const MaskDraws& draws, std::int32_t mask_id,
                             std::int64_t ids_of_texts) {
  const auto bound = [](double share) { return std::floor(share * 0x1p32); };
  const double labels = bound(keys.mask_rate), masked = bound(keys.masked_share),
               changed = bound(keys.masked_share + keys.random_share);
  SequenceDocument document{.token = text, .label = std::vector<std::int32_t>(text.size(), -1)};
  bool of_word = false;  // whether the word that the token belongs to is a label
  for (std::size_t u = 0; u < text.size(); ++u) {
    const MaskDraws::Draw draw = draws.at(at + static_cast<std::int64_t>(u));
    if (u == 0 || word_begins.empty() || word_begins[u]) {
      of_word = static_cast<double>(draw.label) < labels;
    }
    if (!of_word) {
      continue;
    }
    document.label[u] = text[u];
    const double what = static_cast<double>(draw.what);
    if (what < masked) {
      document.token[u] = mask_id;
    } else if (what < changed) {
      document.token[u] =
          static_cast<std::int32_t>((std::uint64_t{draw.other} * static_cast<std::uint64_t>(ids_of_texts)) >> 32);
    }
  }
  return document;
}

std::vector<bool> words_of_bytes(const std::vector<std::int32_t>& text) {
  const auto in_word = [](std::int32_t byte) {
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    return letter || (byte >= '0' && byte <= '9') || byte >= 128;
  };
  std::vector<bool> begins(text.size());
  for (std::size_t u = 0; u < text.size(); ++u) {
    begins[u] = u == 0 || !in_word(text[u]) || !in_word(text[u - 1]);
  }
  return begins;
}

void put_frame(SequenceDocument& text, const Frame& frame, std::int64_t types) {
  if (frame.around) {
    text.token.insert(text.token.begin(), frame.first);
    text.label.insert(text.label.begin(), -1);
    text.token.push_back(frame.last);
    text.label.push_back(-1);
  }
  text.value.assign(text.token.size() * static_cast<std::size_t>(types), 0);
  for (std::size_t t = 0; types > 0 && t < text.token.size(); ++t) {
    text.value[t * static_cast<std::size_t>(types)] = 1;
  }
}

}  // namespace orthant::encoder
