// Where batches come from: the sequences of each step, and those that are measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <orthant/host_batch.h>

#include "core/data/data_size.h"

namespace orthant {

// Sequences that are measured, the same at each validation. Thread safety: const calls from any thread.
class HeldOut {
 public:
  virtual ~HeldOut() = default;
  // Validation sequences [first, first + count).
  virtual HostBatch validation(std::int64_t first, std::int64_t count) const = 0;
  virtual std::int64_t validation_sequences() const = 0;  // 0: there are none
};

struct NamedSet {
  std::string name;
  const HeldOut* sequences;  // never null
};

// Where sequences come from. Sequence g of step s is a pure function of (settings, seed, s, g): it depends neither
// on the layout nor on restarts. Thread safety: const calls from any thread.
// What is held out of the data itself is its validation().
class BatchSource : public HeldOut {
 public:
  // Training sequences [first, first + count) of the global batch of `step` (steps count from 0).
  virtual HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const = 0;
  virtual std::int64_t vocabulary() const = 0;
  // The validation sets of data.validation_path, beside what is held out of the data; they live as long as this.
  virtual std::vector<NamedSet> sets() const { return {}; }
  // How much there is to train on. Nothing: it has no end, or is not known.
  virtual std::optional<DataSize> size() const { return {}; }
};

}  // namespace orthant
