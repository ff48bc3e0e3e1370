#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <orthant/error.h>
#include <orthant/settings.h>
#include <orthant/text_tokens.h>

#include "settings.h"
#include "sources.h"

namespace orthant::encoder_decoder {
namespace {

struct PairKeys {
  std::string source_key = "source";
  std::string target_key = "target";
  static const Keys<PairKeys>& keys() {
    static const auto all =
        Keys<PairKeys>()
            .add("source_key", &PairKeys::source_key, "translation: whose value in a JSON line the source is.")
            .add("target_key", &PairKeys::target_key, "translation: whose value the target is.");
    return all;
  }
};

struct Pair {
  std::vector<std::int32_t> source, told;
};

class Reading {
 public:
  Reading(const Settings& s, std::vector<Pair>& pairs)
      : keys_(read_keys<PairKeys>(kind_values(s, "data"))),
        stacks_(stack_keys(s)),
        tokens_(text_tokens(s)),
        too_long_(s.data.too_long),
        longest_source_(source_length(s)),
        longest_target_(s.data.sequence_length),
        pairs_(pairs) {}

  void file(const std::string& path) {
    std::ifstream file(path);
    require(file.good(), "'{}' cannot be read", path);
    std::string line;
    for (std::int64_t number = 1; std::getline(file, line); ++number) {
      if (line.find_first_not_of(" \t\r") != std::string::npos) {
        row(line, fmt::format("{}:{}", path, number));
      }
    }
  }
  std::int64_t left_out() const { return left_out_; }
  std::int64_t cut() const { return cut_; }
  std::int64_t vocabulary() const { return tokens_->vocabulary(); }

 private:
  void row(const std::string& line, const std::string& where) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    const auto text = [&](const std::string& key) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_string()) {
        throw ConfigError(
            fmt::format("{}: expected a JSON object with the texts \"{}\" and \"{}\" (data.source_key, "
                        "data.target_key)",
                        where, keys_.source_key, keys_.target_key));
      }
      return json[key].get<std::string>();
    };
    Pair pair{tokens_->encode(text(keys_.source_key)), tokens_->encode(text(keys_.target_key))};
    append_end(pair.source, stacks_);
    append_end(pair.told, stacks_);
    if (pair.source.empty() || pair.told.empty()) {
      throw ConfigError(fmt::format("{}: the {} has no token", where, pair.source.empty() ? "source" : "target"));
    }
    const bool fits = fit(pair.source, longest_source_, "source", "model.source_length", where) &&
                      fit(pair.told, longest_target_, "target", "data.sequence_length", where);
    if (fits) {
      pairs_.push_back(std::move(pair));
    }
  }

  // False: the pair is left out.
  bool fit(std::vector<std::int32_t>& tokens, std::int64_t longest, const char* what, const char* key,
           const std::string& where) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count <= longest) {
      return true;
    }
    if (too_long_ == TooLong::refuse) {
      throw ConfigError(fmt::format("{}: the {} has {} tokens, {} = {}", where, what, count, key, longest));
    }
    if (too_long_ == TooLong::leave_out) {
      ++left_out_;
      return false;
    }
    ++cut_;
    tokens.resize(static_cast<std::size_t>(longest));
    return true;
  }

  PairKeys keys_;
  StackKeys stacks_;
  std::shared_ptr<const TextTokens> tokens_;
  TooLong too_long_;
  std::int64_t longest_source_, longest_target_;
  std::vector<Pair>& pairs_;
  std::int64_t left_out_ = 0, cut_ = 0;
};

class Translations final : public Sequences {
 public:
  explicit Translations(const Settings& s) : stacks_(stack_keys(s)) {
    Reading reading(s, pairs_);
    for (const std::string& path : s.data.path) {
      reading.file(path);
    }
    vocabulary_ = reading.vocabulary();
    name_ = s.data.path.size() == 1 ? fmt::format("'{}'", s.data.path.front())
                                    : fmt::format("'{}' and {} more", s.data.path.front(), s.data.path.size() - 1);
    const auto all = static_cast<std::int64_t>(pairs_.size());
    const double share = s.data.validation_sequences == 0 ? 0 : s.data.validation_fraction;
    held_out_ = static_cast<std::int64_t>(std::ceil(static_cast<double>(all) * share));
    validation_ = std::min(held_out_, s.data.validation_sequences);
    if (all == 0 || (share < 1 && held_out_ == all)) {
      throw ConfigError(
          fmt::format("{} has {} pairs, and {} are held out: none is left to train on", name_, all, held_out_));
    }
    for (const auto& [count, what] : {std::pair(reading.left_out(), "left out"), std::pair(reading.cut(), "cut")}) {
      if (count > 0) {
        notes_.push_back(fmt::format("{}: {} texts are longer than their positions, and are {} (data.too_long)", name_,
                                     count, what));
      }
    }
  }

  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::optional<std::int64_t> training_sequences() const override {
    return static_cast<std::int64_t>(pairs_.size()) - held_out_;
  }
  Sequence training(std::int64_t i) const override { return {document(i)}; }
  std::int64_t validation_sequences() const override { return validation_; }
  Sequence validation(std::int64_t i) const override {
    return {document(static_cast<std::int64_t>(pairs_.size()) - held_out_ + i * held_out_ / validation_)};
  }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  SequenceDocument document(std::int64_t number) const {
    const Pair& pair = pairs_[static_cast<std::size_t>(number)];
    SequenceDocument target;
    begin_target(target, pair.told, stacks_);
    target.spaces.resize(1);
    target.spaces.front().token = pair.source;
    target.spaces.front().label.assign(pair.source.size(), -1);
    return target;
  }

  StackKeys stacks_;
  std::vector<Pair> pairs_;
  std::string name_;
  std::int64_t vocabulary_ = 0, held_out_ = 0, validation_ = 0;
  std::vector<std::string> notes_;
};

class TranslationSource final : public Source {
 public:
  std::vector<KindKey> keys() const override { return PairKeys::keys().declared(); }
  std::vector<std::string> spaces(const Settings&) const override { return {"target", "source"}; }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override { return text_tokens(s)->vocabulary(); }
  std::unique_ptr<Sequences> open(const Settings& s) const override { return std::make_unique<Translations>(s); }
};

}  // namespace

std::shared_ptr<const Source> make_translation_source() {
  return std::make_shared<TranslationSource>();
}

}  // namespace orthant::encoder_decoder
