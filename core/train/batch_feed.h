// BatchFeed: this rank's micro-batches of each step, and what the objectives count in all of the global batch.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "core/data/batch.h"
#include "core/plan/batch_share.h"
#include "core/train/objectives.h"

namespace orthant {

// The batch of one step.
struct StepLoad {
  std::int64_t step = 0;
  std::vector<HostBatch> micro_batches;  // of this rank
  // Of the global batch: tokens that are not padding in each token space, and what the objectives count
  // (Objectives::counts).
  std::vector<std::int64_t> valid;
  std::vector<std::int64_t> counts;
};

class BatchFeed {
 public:
  // Collective over the world. All references outlive it.
  BatchFeed(Plan& plan, const BatchSource& source, const Objectives& objectives, Stream& stream);

  const BatchSource& source() const { return source_; }
  const BatchShare& share_of(std::int64_t step) const;
  const BatchShare& first_share() const { return shares_.front(); }
  const BatchShare& largest_share() const { return shares_.back(); }

  // Collective over the ranks that split tokens. Errors: those of the source; Error where no rank has a token.
  StepLoad load(std::int64_t step);
  // Reads this rank's part of that step from the source now, for load(). What fails, fails there.
  void read_ahead(std::int64_t step);

  // This rank's counts of tokens that are not padding and of the objectives become those of all ranks that split
  // tokens. Collective over them.
  void sum_counts(std::vector<std::int64_t>& valid, std::vector<std::int64_t>& counts);

 private:
  // Or what hindered it.
  struct ReadAhead {
    StepLoad load;
    std::exception_ptr failure;
  };
  StepLoad read(std::int64_t step) const;

  Plan& plan_;
  const BatchSource& source_;
  const Objectives& objectives_;
  Stream& stream_;
  const std::vector<BatchShare> shares_;  // by the size of the batch
  Group& tokens_;                         // the ranks that split tokens
  std::optional<ReadAhead> ahead_;
};

}  // namespace orthant
