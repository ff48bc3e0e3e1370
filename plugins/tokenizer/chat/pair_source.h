// PairSource: two answers to a prompt, one preferred to the other, for the loss of [preference].
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/data_size.h"
#include "core/data/prepare.h"

namespace orthant {

// How the lines of files of pairs (conversation.h) become coded tokens, a document each: those of the chosen answer as
// ChatEncoder codes them, then those of the rejected one, each 2 * vocabulary higher. output: as given. Errors:
// SettingError for a template that is not known, or that does not fit the tokenizer.
PrepareOptions tokens_of_pairs(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                               std::filesystem::path output);

// A pair is a sequence of two documents, the chosen one first, each with the prompt. A label is the next token where
// that is one of an answer, and -1 elsewhere. A pair that is longer than a sequence is cut at the ends of both, the
// longer one first, refused or left out.
class PairSource final : public SizedSequences {
 public:
  // coded: the token files that tokens_of_pairs makes, one for each of settings.data.path. Errors: ConfigError for a
  // pair that is too long by data.too_long, and for one of which an answer has no token left, by file and line.
  PairSource(const std::vector<std::string>& coded, const Settings& settings, std::int64_t vocabulary);

  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::optional<std::int64_t> training_sequences() const override { return train_; }
  Sequence training(std::int64_t i) const override { return sequence(pairs_[static_cast<std::size_t>(i)]); }
  std::int64_t validation_sequences() const override { return measured_; }
  Sequence validation(std::int64_t i) const override;
  std::optional<DataSize> size() const override;
  std::vector<std::string> notes() const override { return notes_; }

 private:
  // Where its two documents stand in the corpus; sizes in positions: a token less, which is only a label.
  struct Pair {
    std::int64_t chosen = 0, rejected = 0;
    std::int32_t chosen_size = 0, rejected_size = 0;
  };
  Pair pair_of(const Document& line) const;
  // Whether it was too long.
  static bool cut(Pair& pair, std::int64_t positions);
  void hold_out(const DataSettings& data);
  SequenceDocument document(std::int64_t begin, std::int64_t size) const;
  Sequence sequence(const Pair& pair) const;

  std::string name_;
  std::int64_t vocabulary_;
  Corpus corpus_;
  std::vector<Pair> pairs_;  // those to train on first
  std::int64_t train_ = 0, measured_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace orthant
