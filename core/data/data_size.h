// How much a run trains on, and how many steps read it how often.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <cstdint>
#include <optional>
#include <string>

namespace orthant {

struct DataSize {
  std::int64_t sequences = 0;               // an epoch: so many read all of it once
  std::optional<std::int64_t> tokens = {};  // of these; nothing: the source does not say
  bool windows = false;  // they lie at random places, and so many have as many tokens as there are to train on
};

// Sequences that know more of their size than Sequences::training_sequences. Nothing: there is no end.
class SizedSequences : public Sequences {
 public:
  virtual std::optional<DataSize> size() const = 0;
};

// Of any sequences, those of a plugin's source too. Nothing: there is no end.
std::optional<DataSize> size_of(const Sequences& sequences);

// The fewest steps that read `sequences` sequences `epochs` times. A step goes on into the next epoch. REQUIRES: both
// are above 0. Errors: SettingError for run.epochs, where they are more than a run may have.
std::int64_t steps_of_epochs(const BatchSettings& batch, double epochs, std::int64_t sequences);

// "data: 9 sequences to train on, 301 tokens; 4 steps read 32 sequences, 3.56 epochs".
std::string size_text(const DataSize& size, const Settings& settings);

}  // namespace orthant
