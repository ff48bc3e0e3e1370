// Which sequences of the global batch a rank loads, and in which micro-batches.
#pragma once

#include <orthant/plan.h>

#include <vector>

namespace orthant {

struct BatchShare {
  std::int64_t first = 0;        // sequence of the global batch
  std::int64_t sequences = 0;    // of this rank, per step
  std::int64_t micro_batch = 0;  // sequences of one
  int micro_batches = 0;
};

// One for each of batch_sizes(settings.batch), which have micro-batches of one size: steps take that of
// times_grown(settings.batch, step). Errors: LayoutError where batch.sequences, positions or tokens do not divide among
// the ranks; SettingError where a rank's sequences do not divide into micro-batches, or those into groups of tokens,
// and for a size of batch.grow_to.
std::vector<BatchShare> batch_shares(const Plan& plan);

// That of the largest batch: no step has more micro-batches. Errors: as above.
BatchShare largest_share(const Plan& plan);

}  // namespace orthant
