// DealtSource: sequences dealt to the steps of a run, as batches.
#pragma once

#include <orthant/plan.h>
#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <vector>

#include "core/data/batch.h"
#include "core/data/validation_sets.h"

namespace orthant {

// Sequence g of step s is number sequences_before(s) + g of the endless row of epochs; each epoch of a source that ends
// is in an order of its own, drawn from the seed. Beside them stand the validation sets.
class DealtSource final : public BatchSource {
 public:
  DealtSource(std::unique_ptr<Sequences> sequences, ValidationSets sets, const Settings& settings);

  // Errors: Error for a sequence that is too long, or whose ids are outside the model's vocabulary.
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override;
  HostBatch validation(std::int64_t first, std::int64_t count) const override;
  std::int64_t validation_sequences() const override { return sequences_->validation_sequences(); }
  std::int64_t vocabulary() const override { return sequences_->vocabulary(); }
  std::vector<NamedSet> sets() const override { return sets_.sets(); }
  std::optional<DataSize> size() const override { return size_of(*sequences_); }

 private:
  std::vector<EpochSequence> rows_of(std::int64_t step, std::int64_t first, std::int64_t count) const;

  std::unique_ptr<Sequences> sequences_;
  ValidationSets sets_;
  std::uint64_t seed_;
  BatchSettings batch_;
  std::vector<Space> spaces_;
  std::int64_t vocabulary_;  // of the model
};

}  // namespace orthant
