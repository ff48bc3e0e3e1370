// One block for each expert of each group: it takes the tokens to which it is likeliest.
//
// It reads one column of the group's logits five times, from the second time on from the L2 cache.
#include "router/cuda/expert_choice.h"

#include "core/device/cuda/launch.h"
#include "router/cuda/select.h"
#include "router/cuda/token_row.h"
#include "router/rules/capacity.h"
#include "router/rules/expert_choice.h"

namespace orthant::cuda {
namespace {

struct ChoiceTask {
  std::int32_t *expert, *chosen;  // [T, E], [G, E]
  float* weight;                  // [T, E]
  const float *logits, *lse;      // [T, E], [T]
  const std::uint8_t* valid;      // [T]
  int group_tokens, experts;
  std::int64_t items;  // groups * E
  ScoreKind score;
  SeatRule rule;
};

__global__ void __launch_bounds__(512) take_tokens(ChoiceTask task) {
  for (std::int64_t item = blockIdx.x; item < task.items; item += gridDim.x) {
    const std::int64_t first = item / task.experts * task.group_tokens, e = item % task.experts;
    int valid = 0;
    for (int i = static_cast<int>(threadIdx.x); i < task.group_tokens; i += static_cast<int>(blockDim.x)) {
      valid += task.valid[first + i] != 0 ? 1 : 0;
    }
    valid = block_sum(valid);
    const std::int64_t seats = task.rule.seats(valid);
    const int count = seats < valid ? static_cast<int>(seats) : valid;
    // Padding has priority 0, and everything else more.
    const auto priority = [&](int i) {
      const std::int64_t t = first + i;
      return task.valid[t] != 0 ? rank_of(rank_for_expert(task.score, task.logits[t * task.experts + e], task.lse[t]))
                                : 0u;
    };
    const Threshold threshold = count < valid ? find_threshold(task.group_tokens, count, priority) : Threshold{0, 0};
    visit_taken(task.group_tokens, threshold, priority, [&](int i, bool taken, int) {
      const std::int64_t t = first + i, at = t * task.experts + e;
      task.expert[at] = taken ? static_cast<std::int32_t>(e) : -1;
      const float logit = task.logits[at];
      const float score = task.score == ScoreKind::sigmoid ? sigmoid(logit) : expf(logit - task.lse[t]);
      task.weight[at] = taken ? score : 0.0f;
    });
    if (threadIdx.x == 0) {
      task.chosen[item] = count;
    }
  }
}

}  // namespace

void choose_by_experts(const StreamRef& stream, const Tensor& expert, const Tensor& weight, const Tensor& chosen,
                       const Tensor& logits, const Tensor& lse, const Tensor& valid, const GateConfig& config) {
  require(config.group_tokens <= 2147483647, "gate: groups of {} tokens are too large", config.group_tokens);
  const ChoiceTask task{.expert = expert.as<std::int32_t>(),
                        .chosen = chosen.as<std::int32_t>(),
                        .weight = weight.as<float>(),
                        .logits = logits.as<float>(),
                        .lse = lse.as<float>(),
                        .valid = valid.as<std::uint8_t>(),
                        .group_tokens = static_cast<int>(config.group_tokens),
                        .experts = static_cast<int>(config.experts),
                        .items = chosen.elements(),
                        .score = config.score,
                        .rule = seat_rule(config)};
  launch(take_tokens, Grid{blocks_for(task.items, 1), config.group_tokens > 256 ? 512 : 256}, stream, task);
}

}  // namespace orthant::cuda
