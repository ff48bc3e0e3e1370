#include <bit>
#include <string>
#include <utility>

#include <orthant/catalogue.h>
#include <orthant/settings.h>

#include "masking.h"
#include "sources.h"

namespace orthant::encoder {
namespace {

// Which of `size` texts stands at a place of an epoch: an order without replacement, drawn from the seed. A Feistel
// network over the next power of four, walked until it lands inside (Black and Rogaway, 2002).
std::int64_t text_at(std::uint64_t seed, std::int64_t place, std::int64_t size) {
  const std::int64_t epoch = place / size;
  const RandomKey key{seed, Purpose::data_order, 0x4D42u, static_cast<std::uint32_t>(epoch)};
  const int half = (std::bit_width(static_cast<std::uint64_t>(size)) + 1) / 2;
  const std::uint64_t low = (std::uint64_t{1} << half) - 1;
  std::uint64_t at = static_cast<std::uint64_t>(place % size);
  do {
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t right = at & low, left = at >> half;
      at = (right << half) | ((left ^ philox(key, (round << 32) | right).v[0]) & low);
    }
  } while (at >= static_cast<std::uint64_t>(size));
  return static_cast<std::int64_t>(at);
}

// Endless, so that each epoch has masks of its own: the number of a sequence counts on from epoch to epoch.
class Masked final : public Sequences {
 public:
  Masked(std::unique_ptr<Sequences> text, const Settings& s)
      : text_(std::move(text)),
        keys_(read_keys<MaskKeys>(kind_values(s, "data"))),
        frame_(frame_keys(s), text_->vocabulary()),
        types_(encoder_keys(s).token_types),
        positions_(s.data.sequence_length),
        seed_(s.run.seed) {}
  std::string name() const override { return text_->name(); }
  std::int64_t vocabulary() const override { return frame_.vocabulary; }
  Sequence training(std::int64_t i) const override {
    const std::optional<std::int64_t> texts = text_->training_sequences();
    return masked(text_->training(texts.has_value() ? text_at(seed_, i, *texts) : i), i, false);
  }
  std::int64_t validation_sequences() const override { return text_->validation_sequences(); }
  Sequence validation(std::int64_t i) const override { return masked(text_->validation(i), i, true); }
  std::vector<std::string> notes() const override { return text_->notes(); }

 private:
  Sequence masked(const Sequence& texts, std::int64_t i, bool held_out) const {
    const MaskDraws draws{seed_, held_out, static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(positions_)};
    Sequence all;
    std::int64_t at = 0;
    for (const SequenceDocument& text : texts) {
      const std::vector<bool> words = keys_.whole_words ? words_of_bytes(text.token) : std::vector<bool>();
      all.push_back(
          masked_text(text.token, words, at + (frame_.around ? 1 : 0), keys_, draws, frame_.mask, text_->vocabulary()));
      put_frame(all.back(), frame_, types_);
      at += static_cast<std::int64_t>(all.back().token.size());
    }
    return all;
  }

  std::unique_ptr<Sequences> text_;
  MaskKeys keys_;
  Frame frame_;
  std::int64_t types_, positions_;
  std::uint64_t seed_;
};

class MaskedSource final : public Source {
 public:
  std::vector<KindKey> keys() const override {
    std::vector<KindKey> keys = MaskKeys::keys().declared();
    const std::vector<KindKey> of_frame = FrameKeys::keys().declared();
    keys.insert(keys.end(), of_frame.begin(), of_frame.end());
    return keys;
  }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override {
    const std::optional<std::int64_t> of_texts = text_source(s).vocabulary(s);
    return of_texts.has_value() ? std::optional(Frame(frame_keys(s), *of_texts).vocabulary) : std::nullopt;
  }
  std::unique_ptr<Sequences> open(const Settings& s) const override {
    return std::make_unique<Masked>(text_source(s).open(of_texts(s)), s);
  }
  std::unique_ptr<Sequences> peek(const Settings& s) const override {
    std::unique_ptr<Sequences> text = text_source(s).peek(of_texts(s));
    return text == nullptr ? nullptr : std::make_unique<Masked>(std::move(text), s);
  }

 private:
  static const Source& text_source(const Settings& s) { return s.catalogue->get<Source>("text"); }
  // Of the sequences whose tokens are masked.
  static Settings of_texts(const Settings& s) {
    const FrameKeys frame = frame_keys(s);
    const MaskKeys keys = read_keys<MaskKeys>(kind_values(s, "data"));
    if (frame.frame && s.data.documents == Documents::packed) {
      throw SettingError("data.documents",
                         "[data] documents: several texts in one sequence leave no room for the ids around each\n"
                         "write frame = false, or documents = \"separate\"");
    }
    if (keys.whole_words && s.data.tokenizer != "bytes") {
      throw SettingError("data.whole_words",
                         "[data] whole_words: source \"masked\" knows the words of tokenizer \"bytes\" alone\n"
                         "leave it out");
    }
    if (keys.masked_share + keys.random_share > 1) {
      throw SettingError("data.random_share", "[data] random_share: with masked_share it is more than 1\nwrite less");
    }
    Settings text = s;
    text.data.source = "text";
    text.data.sequence_length = text_positions(s);
    return text;
  }
};

}  // namespace

std::shared_ptr<const Source> make_masked_source() {
  return std::make_shared<MaskedSource>();
}

}  // namespace orthant::encoder
