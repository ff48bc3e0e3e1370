// Which sequences of the global batch a rank loads, and in which micro-batches.
#pragma once

#include <orthant/plan.h>

namespace orthant {

struct BatchShare {
  std::int64_t first = 0;        // sequence of the global batch
  std::int64_t sequences = 0;    // of this rank, per step
  std::int64_t micro_batch = 0;  // sequences of one
  int micro_batches = 0;
};

// Errors: ConfigError where batch.sequences does not divide among the ranks, or those among micro-batches.
BatchShare batch_share(const Plan& plan);

}  // namespace orthant
