#include "core/plan/batch_share.h"

#include <orthant/settings.h>

#include <algorithm>
#include <limits>

namespace orthant {
namespace {

// What the rows of a micro-batch have to fit.
void check_micro_batch(const Plan& plan, std::int64_t micro, int space) {
  const std::int64_t group = plan.settings().moe.group_tokens.written();
  // Rows of a micro-batch are numbered in 32 bits, choices of experts among them.
  const std::int64_t rows =
      std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(plan.settings().moe.top_k, 1);
  const std::int64_t length = plan.spaces()[static_cast<std::size_t>(space)].positions;
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
    plan.rows(region, micro * plan.held_positions(region, rank, space), rank);
  }
}

BatchShare first_share(const Plan& plan) {
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
  for (int space = 0; space < static_cast<int>(plan.spaces().size()); ++space) {
    check_micro_batch(plan, micro, space);
  }
  return {range.begin, range.count, micro, static_cast<int>(range.count / micro)};
}

// Of a later batch, whose micro-batches are those of the first.
BatchShare grown_share(const Plan& plan, std::size_t number, std::int64_t micro) {
  const BatchSettings& batch = plan.settings().batch;
  const std::int64_t sequences = batch.grow_to.at(number);
  const bool derived = batch.micro_batch == 0;
  const std::int64_t ranks = batch.sequences / plan.part(Dim::batch, batch.sequences, Region::embedding).count;
  if (sequences % (ranks * micro) != 0) {
    throw SettingError("batch.grow_to",
                       fmt::format("[batch] grow_to: {} sequences do not divide among {} rank{} in micro-batches of "
                                   "{}{}\nwrite a multiple of {}{}",
                                   sequences, ranks, ranks == 1 ? "" : "s", micro,
                                   derived ? " (a rank's share of batch.sequences, as batch.micro_batch is 0)" : "",
                                   ranks * micro, derived ? ", or a batch.micro_batch that divides all sizes" : ""),
                       number);
  }
  const Range range = plan.part(Dim::batch, sequences, Region::embedding);
  return {range.begin, range.count, micro, static_cast<int>(range.count / micro)};
}

}  // namespace

std::vector<BatchShare> batch_shares(const Plan& plan) {
  std::vector<BatchShare> shares = {first_share(plan)};
  for (std::size_t i = 0; i < plan.settings().batch.grow_to.size(); ++i) {
    shares.push_back(grown_share(plan, i, shares.front().micro_batch));
  }
  return shares;
}

BatchShare largest_share(const Plan& plan) {
  return batch_shares(plan).back();
}

}  // namespace orthant
