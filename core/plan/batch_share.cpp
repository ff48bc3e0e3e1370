#include "core/plan/batch_share.h"

#include <algorithm>
#include <limits>

namespace orthant {

BatchShare batch_share(const Plan& plan) {
  const BatchSettings& batch = plan.settings().batch;
  const Range range = plan.part(Dim::batch, batch.sequences, Region::embedding);
  const std::int64_t micro = micro_batch_of(plan.settings(), range.count);
  if (micro > range.count || range.count % micro != 0) {
    throw SettingError(
        "batch.micro_batch",
        fmt::format("batch.sequences = {} leaves {} sequences for each rank that splits the batch, which do "
                    "not divide into micro-batches of batch.micro_batch = {}",
                    batch.sequences, range.count, micro));
  }
  const std::int64_t group = plan.settings().moe.group_tokens, length = plan.settings().data.sequence_length;
  // Rows of a micro-batch are numbered in 32 bits, choices of experts among them.
  const std::int64_t rows =
      std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(plan.settings().moe.top_k, 1);
  if (micro > rows / length) {
    throw SettingError("batch.micro_batch",
                       fmt::format("a micro-batch of {} sequences of {} tokens is too large (at most {} tokens): set "
                                   "batch.micro_batch to less",
                                   micro, length, rows));
  }
  if (plan.settings().moe.experts > 0 && group > 0 && (micro * length) % group != 0) {
    throw SettingError(
        "moe.group_tokens",
        fmt::format("moe.group_tokens = {} does not divide the {} tokens of a micro-batch ({} sequences of "
                    "{}): a group of tokens stays within one micro-batch",
                    group, micro * length, micro, length));
  }
  const int rank = plan.mesh().rank();
  for (Region region : {Region::embedding, Region::norm, Region::attention, Region::attention_core, Region::ffn,
                        Region::router, Region::experts, Region::head}) {
    std::int64_t held = 0;
    for (const Range& run : plan.positions(region, rank)) {
      held += run.count;
    }
    plan.rows(region, micro * held, rank);
  }
  return {range.begin, range.count, micro, static_cast<int>(range.count / micro)};
}

}  // namespace orthant
