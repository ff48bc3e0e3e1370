#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <orthant/catalogue.h>
#include <orthant/random.h>
#include <orthant/settings.h>

#include "settings.h"
#include "sources.h"

namespace orthant::encoder_decoder {
namespace {

struct SpanKeys {
  double noise_density = 0.15;
  double span_length = 3;
  std::int64_t sentinels = 100;
  static const Keys<SpanKeys>& keys() {
    static const auto all =
        Keys<SpanKeys>()
            .add("noise_density", &SpanKeys::noise_density, "spans: share of the tokens that is left out.",
                 between(0.01, 0.9))
            .add("span_length", &SpanKeys::span_length, "spans: tokens of a run that is left out, on average.",
                 between(1, 1000))
            .add("sentinels", &SpanKeys::sentinels,
                 "spans: ids that stand for runs, the last ones of the vocabulary; the first run has the last id.",
                 between(1, 65536));
    return all;
  }
};

SpanKeys span_keys(const Settings& s) {
  return read_keys<SpanKeys>(kind_values(s, "data"));
}

// How `length` tokens are divided: what is left out, and in how many runs.
struct Parts {
  std::int64_t length = 0, noise = 0, runs = 0, end = 0;  // end: of the token that ends both, where there is one
  std::int64_t source() const { return length - noise + runs + end; }
  std::int64_t target() const { return noise + runs + end; }
};

Parts parts_of(std::int64_t length, const SpanKeys& keys, const StackKeys& stacks) {
  Parts parts{.length = length, .end = stacks.end_token >= 0 ? 1 : 0};
  const double noise = std::round(static_cast<double>(length) * keys.noise_density);
  parts.noise = std::clamp<std::int64_t>(static_cast<std::int64_t>(noise), 1, std::max<std::int64_t>(length - 1, 1));
  const double runs = std::round(static_cast<double>(parts.noise) / keys.span_length);
  parts.runs = std::clamp<std::int64_t>(static_cast<std::int64_t>(runs), 1,
                                        std::max<std::int64_t>(1, std::min(parts.noise, length - parts.noise)));
  return parts;
}

// The most tokens of a text whose source and target fit.
std::int64_t text_length(const Settings& s, const SpanKeys& keys) {
  std::int64_t length = 1;
  for (std::int64_t next = 2; next <= source_length(s) + s.data.sequence_length; ++next) {
    const Parts parts = parts_of(next, keys, stack_keys(s));
    if (parts.source() <= source_length(s) && parts.target() <= s.data.sequence_length &&
        parts.runs <= keys.sentinels) {
      length = next;
    }
  }
  return length;
}

// `total` in `parts` parts of one at least, by chance: the places of the cuts are drawn without replacement.
std::vector<std::int64_t> divided(std::int64_t total, std::int64_t parts, const RandomKey& key, std::uint64_t& index) {
  std::vector<std::int64_t> sizes;
  std::int64_t left = total - 1, cuts = parts - 1, size = 1;
  for (; left > 0; --left) {
    // Each of the places that are left is a cut with probability cuts / left.
    if (static_cast<double>(uniform(key, index++)) * static_cast<double>(left) < static_cast<double>(cuts)) {
      sizes.push_back(size);
      size = 0;
      --cuts;
    }
    ++size;
  }
  sizes.push_back(size);
  return sizes;
}

// Which tokens are left out depends on the seed, the epoch's sequence and nothing else.
SequenceDocument corrupted(const std::vector<std::int32_t>& token, const SpanKeys& keys, const StackKeys& stacks,
                           std::int64_t vocabulary, std::uint64_t seed, std::int64_t sequence, bool held_out) {
  const Parts parts = parts_of(static_cast<std::int64_t>(token.size()), keys, stacks);
  const RandomKey key{seed, Purpose::data_order, 0x5A5Au + (held_out ? 1u : 0u), static_cast<std::uint32_t>(sequence)};
  std::uint64_t index = 0;
  const std::vector<std::int64_t> out = divided(parts.noise, parts.runs, key, index);
  const std::vector<std::int64_t> kept = divided(parts.length - parts.noise, parts.runs, key, index);
  SequenceDocument target;
  target.spaces.resize(1);
  SequenceDocument& source = target.spaces.front();
  std::vector<std::int32_t> told;  // the target: each sentinel, and what it stands for
  auto next = token.begin();
  for (std::size_t run = 0; run < out.size(); ++run) {
    const std::int32_t sentinel = static_cast<std::int32_t>(vocabulary - 1 - static_cast<std::int64_t>(run));
    source.token.insert(source.token.end(), next, next + kept[run]);
    next += kept[run];
    source.token.push_back(sentinel);
    told.push_back(sentinel);
    told.insert(told.end(), next, next + out[run]);
    next += out[run];
  }
  append_end(source.token, stacks);
  append_end(told, stacks);
  source.label.assign(source.token.size(), -1);
  begin_target(target, std::move(told), stacks);
  return target;
}

class Spans final : public Sequences {
 public:
  Spans(std::unique_ptr<Sequences> text, const SpanKeys& keys, const Settings& s)
      : text_(std::move(text)),
        keys_(keys),
        stacks_(stack_keys(s)),
        seed_(s.run.seed),
        vocabulary_(s.model.vocab_size) {}
  std::string name() const override { return text_->name(); }
  std::int64_t vocabulary() const override { return text_->vocabulary() + keys_.sentinels; }
  std::optional<std::int64_t> training_sequences() const override { return text_->training_sequences(); }
  Sequence training(std::int64_t i) const override { return spans(text_->training(i), i, false); }
  std::int64_t validation_sequences() const override { return text_->validation_sequences(); }
  Sequence validation(std::int64_t i) const override { return spans(text_->validation(i), i, true); }
  std::vector<std::string> notes() const override { return text_->notes(); }

 private:
  Sequence spans(const Sequence& text, std::int64_t i, bool held_out) const {
    Sequence all;
    for (const SequenceDocument& document : text) {
      if (document.token.size() > 1) {
        all.push_back(corrupted(document.token, keys_, stacks_, vocabulary_, seed_, i, held_out));
      }
    }
    return all;
  }

  std::unique_ptr<Sequences> text_;
  SpanKeys keys_;
  StackKeys stacks_;
  std::uint64_t seed_;
  std::int64_t vocabulary_;
};

class SpanSource final : public Source {
 public:
  std::vector<KindKey> keys() const override { return SpanKeys::keys().declared(); }
  std::vector<std::string> spaces(const Settings&) const override { return {"target", "source"}; }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override {
    const std::optional<std::int64_t> text = text_vocabulary(s);
    return text.has_value() ? std::optional(*text + span_keys(s).sentinels) : std::nullopt;
  }
  std::unique_ptr<Sequences> open(const Settings& s) const override {
    const SpanKeys keys = span_keys(s);
    const std::int64_t length = text_length(s, keys);
    if (length < 2) {
      throw SettingError("data.sequence_length",
                         fmt::format("[data] sequence_length: no text of two tokens fits, as what is left out takes 2 "
                                     "positions of {}, and what stays 2 of model.source_length, {}\nwrite more",
                                     s.data.sequence_length, source_length(s)));
    }
    return std::make_unique<Spans>(open_text(s, length), keys, s);
  }
};

}  // namespace

std::optional<std::int64_t> text_vocabulary(const Settings& s) {
  return s.catalogue->get<Source>("text").vocabulary(s);
}

std::unique_ptr<Sequences> open_text(const Settings& s, std::int64_t length) {
  if (s.data.documents != Documents::stream) {
    throw SettingError("data.documents", fmt::format("[data] documents: source \"{}\" cuts a text without regard to "
                                                     "documents\nleave it out",
                                                     s.data.source));
  }
  Settings text = s;
  text.data.source = "text";
  text.data.sequence_length = length;
  text.model.kind = "decoder";
  return s.catalogue->get<Source>("text").open(text);
}

std::shared_ptr<const Source> make_span_source() {
  return std::make_shared<SpanSource>();
}

}  // namespace orthant::encoder_decoder
