#include "core/dry_run/recomputed.h"

#include <vector>

#include "core/arch/links.h"
#include "core/plan/batch_share.h"
#include "core/plan/recompute_rule.h"

namespace orthant {

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
      const auto [first, last] = plan.layers_of_chunk(instr.chunk);
      for (int layer = first; layer < last; ++layer) {
        const Link& link = plan.links()[static_cast<std::size_t>(layer)];
        again.flops += tokens * (recompute == Recompute::selective ? link.again_selective : link.again_full);
      }
    }
  }
  return again;
}

}  // namespace orthant
