// StreamSource: windows into one unbroken row of tokens, as nanoGPT draws them.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <algorithm>
#include <optional>
#include <string>

#include "core/data/corpus.h"
#include "core/data/data_size.h"

namespace orthant {

// Training: windows at uniformly random places of the training part (the corpus less its last validation_fraction).
// A fraction of 1 leaves nothing to train on.
// Validation: up to validation_sequences windows, spread evenly over the held-out part without overlap; where it is
// shorter, all of it, the last window padded.
class StreamSource final : public SizedSequences {
 public:
  // Errors: ConfigError when a part is shorter than one sequence and its last label.
  StreamSource(Corpus corpus, const Settings& settings);

  std::string name() const override { return corpus_.name(); }
  std::int64_t vocabulary() const override { return corpus_.vocabulary(); }
  Sequence training(std::int64_t i) const override;
  std::int64_t validation_sequences() const override { return windows_; }
  std::optional<DataSize> size() const override {
    return DataSize{
        .sequences = std::max<std::int64_t>(train_tokens_ / positions_, 1), .tokens = train_tokens_, .windows = true};
  }
  Sequence validation(std::int64_t i) const override;

 private:
  Corpus corpus_;
  std::uint64_t seed_;
  std::int64_t batch_sequences_;
  std::int64_t positions_;
  std::int64_t train_tokens_;
  std::int64_t windows_ = 0;
  std::int64_t stride_ = 0;  // between the starts of validation windows
};

}  // namespace orthant
