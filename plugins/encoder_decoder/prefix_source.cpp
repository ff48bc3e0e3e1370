#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <orthant/error.h>
#include <orthant/random.h>
#include <orthant/settings.h>

#include "settings.h"
#include "sources.h"

namespace orthant::encoder_decoder {
namespace {

// Where a text of `length` tokens may be cut: so many tokens are the source's.
struct Cuts {
  std::int64_t length = 0, first = 0, last = 0;
};

// As long as the longer of both, so that the cut has room.
Cuts cuts_of(const Settings& s) {
  const std::int64_t end = stack_keys(s).end_token >= 0 ? 1 : 0;
  const std::int64_t source = source_length(s) - end, target = s.data.sequence_length - end;
  const std::int64_t length = std::max(source, target);
  return {.length = length, .first = std::max<std::int64_t>(1, length - target), .last = std::min(source, length - 1)};
}

class Prefixes final : public Sequences {
 public:
  Prefixes(std::unique_ptr<Sequences> text, const Settings& s)
      : text_(std::move(text)), stacks_(stack_keys(s)), cuts_(cuts_of(s)), seed_(s.run.seed) {}
  std::string name() const override { return text_->name(); }
  std::int64_t vocabulary() const override { return text_->vocabulary(); }
  std::optional<std::int64_t> training_sequences() const override { return text_->training_sequences(); }
  Sequence training(std::int64_t i) const override { return cut(text_->training(i), i, false); }
  std::int64_t validation_sequences() const override { return text_->validation_sequences(); }
  Sequence validation(std::int64_t i) const override { return cut(text_->validation(i), i, true); }
  std::vector<std::string> notes() const override { return text_->notes(); }

 private:
  // Where it is cut depends on the seed, the sequence's number and nothing else.
  Sequence cut(const Sequence& text, std::int64_t number, bool held_out) const {
    const RandomKey key{seed_, Purpose::data_order, 0x50F1u + (held_out ? 1u : 0u), static_cast<std::uint32_t>(number)};
    const std::int64_t places = cuts_.last - cuts_.first + 1;
    const auto drawn = static_cast<std::int64_t>(uniform(key, 0) * static_cast<float>(places));
    const std::int64_t at = cuts_.first + std::min(drawn, places - 1);
    Sequence all;
    for (const SequenceDocument& document : text) {
      const std::vector<std::int32_t>& token = document.token;
      if (static_cast<std::int64_t>(token.size()) <= at) {
        continue;
      }
      std::vector<std::int32_t> told(token.begin() + at, token.end());
      SequenceDocument target;
      target.spaces.resize(1);
      SequenceDocument& source = target.spaces.front();
      source.token.assign(token.begin(), token.begin() + at);
      append_end(source.token, stacks_);
      append_end(told, stacks_);
      source.label.assign(source.token.size(), -1);
      begin_target(target, std::move(told), stacks_);
      all.push_back(std::move(target));
    }
    return all;
  }

  std::unique_ptr<Sequences> text_;
  StackKeys stacks_;
  Cuts cuts_;
  std::uint64_t seed_;
};

class PrefixSource final : public Source {
 public:
  std::vector<std::string> spaces(const Settings&) const override { return {"target", "source"}; }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override { return text_vocabulary(s); }
  std::unique_ptr<Sequences> open(const Settings& s) const override {
    const Cuts cuts = cuts_of(s);
    if (cuts.last < cuts.first) {
      throw SettingError("data.sequence_length",
                         fmt::format("[data] sequence_length: of {} positions, and {} of model.source_length, each is "
                                     "to hold a token of the text, and its end\nwrite more",
                                     s.data.sequence_length, source_length(s)));
    }
    return std::make_unique<Prefixes>(open_text(s, cuts.length), s);
  }
};

}  // namespace

std::shared_ptr<const Source> make_prefix_source() {
  return std::make_shared<PrefixSource>();
}

}  // namespace orthant::encoder_decoder
