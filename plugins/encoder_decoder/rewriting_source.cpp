#include <algorithm>
#include <string>
#include <vector>

#include <orthant/random.h>
#include <orthant/settings.h>

#include "settings.h"
#include "sources.h"

namespace orthant::encoder_decoder {
namespace {

// Letters a to z; token 0 begins the target, '.' ends both.
constexpr std::int32_t end_of_word = '.', first_letter = 'a', letters = 26;
constexpr std::int64_t held_out_words = std::int64_t{1} << 40;  // numbers that no training sequence has

// A word backwards, its vowels as capitals: "planet." becomes "tEnAlp.".
std::vector<std::int32_t> rewritten(const std::vector<std::int32_t>& word) {
  std::vector<std::int32_t> out(word.rbegin() + 1, word.rend());
  for (std::int32_t& letter : out) {
    const bool vowel = letter == 'a' || letter == 'e' || letter == 'i' || letter == 'o' || letter == 'u';
    letter = vowel ? letter - 'a' + 'A' : letter;
  }
  out.push_back(end_of_word);
  return out;
}

class Rewriting final : public Sequences {
 public:
  explicit Rewriting(const Settings& s)
      : stacks_(stack_keys(s)),
        seed_(s.run.seed),
        longest_(std::min(source_length(s), s.data.sequence_length) - 1),
        validation_(s.data.validation_sequences) {}
  std::string name() const override { return "words of random letters"; }
  std::int64_t vocabulary() const override { return 128; }
  Sequence training(std::int64_t i) const override { return {pair(i)}; }
  std::int64_t validation_sequences() const override { return validation_; }
  Sequence validation(std::int64_t i) const override { return {pair(held_out_words + i)}; }

 private:
  SequenceDocument pair(std::int64_t number) const {
    const RandomKey key{seed_, Purpose::synthetic, 0x77u, 0};
    const std::uint64_t at = static_cast<std::uint64_t>(number) * 1024;
    const std::int64_t shortest = std::max<std::int64_t>(1, longest_ / 2);
    const std::int64_t length =
        shortest + static_cast<std::int64_t>(uniform(key, at) * static_cast<float>(longest_ - shortest + 1));
    std::vector<std::int32_t> word;
    for (std::int64_t i = 0; i < length; ++i) {
      const float place = uniform(key, at + 1 + static_cast<std::uint64_t>(i)) * static_cast<float>(letters);
      word.push_back(first_letter + std::min(static_cast<std::int32_t>(place), letters - 1));
    }
    word.push_back(end_of_word);
    SequenceDocument target;
    begin_target(target, rewritten(word), stacks_);
    target.spaces.resize(1);
    target.spaces.front().label.assign(word.size(), -1);
    target.spaces.front().token = std::move(word);
    return target;
  }

  StackKeys stacks_;
  std::uint64_t seed_;
  std::int64_t longest_, validation_;
};

class RewritingSource final : public Source {
 public:
  std::vector<std::string> spaces(const Settings&) const override { return {"target", "source"}; }
  std::optional<std::int64_t> vocabulary(const Settings&) const override { return 128; }
  std::unique_ptr<Sequences> open(const Settings& s) const override {
    if (std::min(source_length(s), s.data.sequence_length) < 3 || source_length(s) > 1000) {
      throw SettingError("data.sequence_length",
                         "[data] sequence_length: source \"rewriting\" has words of 1 to 999 "
                         "letters, and an end\nwrite 3 to 1000, and model.source_length too");
    }
    return std::make_unique<Rewriting>(s);
  }
};

}  // namespace

std::shared_ptr<const Source> make_rewriting_source() {
  return std::make_shared<RewritingSource>();
}

}  // namespace orthant::encoder_decoder
