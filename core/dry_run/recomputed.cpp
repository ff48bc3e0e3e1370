#include "core/dry_run/recomputed.h"

#include <vector>

#include "core/arch/cost.h"
#include "core/arch/parameter_table.h"
#include "core/plan/batch_share.h"
#include "core/plan/recompute_rule.h"

namespace orthant {
namespace {

// Of each layer for one token, as layer_costs.
std::vector<double> costs_again(const Settings& s, Recompute recompute) {
  std::vector<double> costs = layer_costs(s);
  const std::size_t head = static_cast<std::size_t>(head_layer(s));
  for (int block = 0; block < blocks_of(s); ++block) {
    const std::size_t layer = static_cast<std::size_t>(layer_of_block(s, block));
    if (recompute == Recompute::selective) {
      // About ten operations for each channel of a dense FFN.
      const std::int64_t channels = block_has_experts(s, block) ? d_shared_of(s) : d_ff_of(s);
      costs[layer] = 10 * static_cast<double>(channels);
    } else if (layer > head) {  // as the model's last block: what joins, and the head, are not computed again
      costs[layer] = costs[head - 1];
    }
  }
  costs.front() = costs[head] = 0;
  return costs;
}

}  // namespace

Recomputed recomputed_of(const Plan& plan, std::int64_t step) {
  const Settings& s = plan.settings();
  const int micro_batches = batch_shares(plan).at(times_grown(s.batch, step)).micro_batches;
  const std::vector<Instr> program = plan.schedule().steps(plan.stage(), plan.stages(), micro_batches);
  const RecomputeRule rule(s.memory, program);
  const double ranks = static_cast<double>(plan.mesh().world_size()) / plan.stages();
  const double tokens =
      static_cast<double>(sequences_of_step(s.batch, step) * s.data.sequence_length) / micro_batches / ranks;
  Recomputed again{.kept = rule.kept()};
  for (const Instr& instr : program) {
    if (instr.op != Op::forward) {
      continue;
    }
    ++again.pairs;
    if (const Recompute recompute = rule.of(instr.chunk, instr.micro_batch); recompute != Recompute::none) {
      const std::vector<double> costs = costs_again(s, recompute);
      const auto [first, last] = plan.layers_of_chunk(instr.chunk);
      for (int layer = first; layer < last; ++layer) {
        again.flops += tokens * costs[static_cast<std::size_t>(layer)];
      }
    }
  }
  return again;
}

}  // namespace orthant
