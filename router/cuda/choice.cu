// choose_experts, gate_choices, balance_bias: the halves of gate, for gates that choose in another way.
//
// A warp has a token and walks along its logits: once or twice for the scores, once for each choice. The scores are
// made again at each walk, from the first-level cache. What groups sum is added up over tables as in gate.cu.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/launch.h"
#include "core/device/router_checks.h"
#include "router/cuda/add_parts.h"
#include "router/cuda/token_row.h"
#include "router/rules/gate.h"
#include "router/rules/losses.h"

namespace orthant::cuda {
namespace {

constexpr int block_warps = 8;

// A token's scores, in the order of `select_top`'s ranks.
struct Scores {
  const float *logits, *bias;  // [E]; bias may be null
  float greatest, scale;       // of the softmax
  bool by_sigmoid;

  __device__ float score(int e) const { return by_sigmoid ? sigmoid(logits[e]) : expf(logits[e] - greatest) * scale; }
  __device__ float value(int e) const { return score(e) + (bias == nullptr ? 0.0f : bias[e]); }
  __device__ float rank(int e) const { return bias == nullptr ? logits[e] : value(e); }
};

// The scores of a token that has the whole warp. lse: its logsumexp, if asked for.
__device__ Scores scores_of(const float* logits, const float* bias, int experts, ScoreKind kind, float* lse) {
  const float greatest = from_rank(next_best(logits, experts, Best{}).rank);
  float sum = 0;
  for (int e = lane(); e < experts; e += warp_threads) {
    sum += expf(logits[e] - greatest);
  }
  sum = warp_sum(sum);
  if (lse != nullptr) {
    *lse = greatest + logf(sum);
  }
  return {logits, bias, greatest, 1 / sum, kind == ScoreKind::sigmoid};
}

// The expert that follows `last` among [first, first + count) in the groups of `groups`.
template <class F>
__device__ Best next_of(int first, int count, std::uint64_t groups, int group_size, Best last, const F& rank) {
  Best best{0, 0x7FFFFFFF};
  for (int e = first + lane(); e < first + count; e += warp_threads) {
    if ((groups >> (e / group_size) & 1) != 0) {
      best = better_after(last, {rank_of(rank(e)), e}, best);
    }
  }
  return best_of_lanes<warp_threads>(best);
}

__global__ void __launch_bounds__(256) choose(std::int32_t* expert, const float* logits, const float* bias,
                                              const std::uint8_t* valid, std::int64_t tokens, GateConfig config) {
  ORTHANT_SHARED(float, worth_of, [block_warps][max_expert_groups]);
  const int experts = static_cast<int>(config.experts), k_count = static_cast<int>(config.top_k);
  const int groups = static_cast<int>(config.expert_groups), size = experts / groups;
  const std::uint64_t all = ~std::uint64_t{0};
  float* const worth = worth_of[warp()];
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * block_warps + warp(); t < tokens;
       t += static_cast<std::int64_t>(gridDim.x) * block_warps) {
    std::int32_t* const to = expert + t * k_count;
    if (valid[t] == 0) {
      for (int k = lane(); k < k_count; k += warp_threads) {
        to[k] = -1;
      }
      continue;
    }
    const Scores scores = scores_of(logits + t * experts, bias, experts, config.score, nullptr);
    std::uint64_t selected = all;
    if (config.groups_per_token < config.expert_groups) {
      const auto value = [&](int e) { return scores.value(e); };
      for (int g = 0; g < groups; ++g) {
        const Best greatest = next_of(g * size, size, all, size, Best{}, value);
        const Best second = next_of(g * size, size, all, size, greatest, value);
        if (lane() == 0) {
          worth[g] = group_worth(from_rank(greatest.rank), from_rank(second.rank), size, config.group_score);
        }
      }
      __syncwarp();
      selected = select_groups(worth, groups, config.groups_per_token);
      __syncwarp();
    }
    Best best{};
    for (int k = 0; k < k_count; ++k) {
      best = next_of(0, experts, selected, size, best, [&](int e) { return scores.rank(e); });
      if (lane() == 0) {
        to[k] = best.expert;
      }
    }
  }
}

struct ChoicesTask {
  float *weight, *lse;  // [T, K], [T]
  const std::int32_t* expert;
  const float* logits;
  const std::uint8_t* valid;
  float *greatest, *part;  // [T]: what turns a logit into its share of the token's scores
  std::int64_t tokens;
  GateConfig config;
};

__device__ int choice_of(const ChoicesTask& task, std::int64_t t, int k) {
  const std::int32_t e = task.expert[t * task.config.top_k + k];
  return e < 0 || e >= task.config.experts ? -1 : e;
}

__global__ void __launch_bounds__(256) weigh(ChoicesTask task) {
  const GateConfig& config = task.config;
  const int experts = static_cast<int>(config.experts), k_count = static_cast<int>(config.top_k);
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * block_warps + warp(); t < task.tokens;
       t += static_cast<std::int64_t>(gridDim.x) * block_warps) {
    float* const weight = task.weight + t * k_count;
    if (task.valid[t] == 0) {
      for (int k = lane(); k < k_count; k += warp_threads) {
        weight[k] = 0;
      }
      if (lane() == 0) {
        task.lse[t] = 0;
        task.greatest[t] = 0;
        task.part[t] = 0;
      }
      continue;
    }
    float lse = 0;
    const Scores scores = scores_of(task.logits + t * experts, nullptr, experts, config.score, &lse);
    float all = 0;
    for (int e = lane(); scores.by_sigmoid && e < experts; e += warp_threads) {
      all += scores.score(e);
    }
    all = warp_sum(all);
    float sum = 0;
    for (int k = lane(); k < k_count; k += warp_threads) {
      const int e = choice_of(task, t, k);
      sum += e < 0 ? 0.0f : scores.score(e);
    }
    sum = warp_sum(sum);
    for (int k = lane(); k < k_count; k += warp_threads) {
      const int e = choice_of(task, t, k);
      const float score = e < 0 ? 0.0f : scores.score(e);
      weight[k] = config.normalize_weights ? share_of(score, sum) : score;
    }
    if (lane() == 0) {
      task.lse[t] = lse;
      task.greatest[t] = scores.greatest;
      task.part[t] = scores.by_sigmoid ? share_of(1, all) : scores.scale;
    }
  }
}

// Of each expert in up to 64 tokens of a group, in their order. A block has such a part, and each thread an expert; all
// read the part's choices, from the cache.
__global__ void __launch_bounds__(128) add_tokens(GroupParts table, ChoicesTask task) {
  const GateConfig& config = task.config;
  const int counted = static_cast<int>(counted_choices(config));
  const bool by_sigmoid = config.score == ScoreKind::sigmoid;
  const std::int64_t parts = table.parts, group = blockIdx.x / parts,
                     e = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const std::int64_t begin = group * config.group_tokens + blockIdx.x % parts * block_tokens;
  const std::int64_t end = min(begin + block_tokens, (group + 1) * config.group_tokens);
  std::int32_t count = 0;
  double sum = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    if (e >= config.experts || task.valid[t] == 0) {
      continue;
    }
    const float logit = task.logits[t * config.experts + e];
    sum += static_cast<double>((by_sigmoid ? sigmoid(logit) : expf(logit - task.greatest[t])) * task.part[t]);
    for (int k = 0; k < counted; ++k) {
      count += task.expert[t * config.top_k + k] == e ? 1 : 0;
    }
  }
  if (e < config.experts) {
    table.chosen_part[blockIdx.x * config.experts + e] = count;
    table.share_part[blockIdx.x * config.experts + e] = sum;
  }
  add_parts_if_last(table, group, parts * gridDim.y);
}

// One block.
__global__ void __launch_bounds__(256) nudge(float* bias, const std::int64_t* choices, const float* factor, float rate,
                                             std::int64_t rows, std::int64_t experts) {
  double all = 0;
  for (std::int64_t i = threadIdx.x; i < rows * experts; i += blockDim.x) {
    all += static_cast<double>(choices[i]);  // whole numbers: exact in any order
  }
  all = block_sum(all);
  if (isnan(*factor)) {
    return;
  }
  for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
    double load = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      load += static_cast<double>(choices[r * experts + e]);
    }
    bias[e] = balanced_bias(bias[e], load, all / static_cast<double>(experts), rate);
  }
}

}  // namespace

void CudaStream::choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias, const Tensor& valid,
                                const GateConfig& config) {
  check_choose_experts(expert, logits, bias, valid, config);
  const std::int64_t tokens = logits.dim(0);
  launch(choose, Grid{blocks_for(tokens, block_warps), 256}, stream_, expert.as<std::int32_t>(), logits.as<float>(),
         bias.as<float>(), valid.as<std::uint8_t>(), tokens, config);
}

void CudaStream::gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                              const Tensor& expert, const Tensor& logits, const Tensor& valid,
                              const GateConfig& config) {
  const std::int64_t groups = check_gate_choices(weight, lse, chosen, share, expert, logits, valid, config);
  const std::int64_t tokens = logits.dim(0), experts = config.experts;
  const std::int64_t parts = (config.group_tokens + block_tokens - 1) / block_tokens;
  require(groups * parts <= 2147483647, "gate_choices: {} groups of {} tokens are too many for one launch", groups,
          config.group_tokens);
  float* const of_tokens = static_cast<float*>(scratch(0, static_cast<std::size_t>(2 * tokens) * sizeof(float)));
  const ChoicesTask task{.weight = weight.as<float>(),
                         .lse = lse.as<float>(),
                         .expert = expert.as<std::int32_t>(),
                         .logits = logits.as<float>(),
                         .valid = valid.as<std::uint8_t>(),
                         .greatest = of_tokens,
                         .part = of_tokens + tokens,
                         .tokens = tokens,
                         .config = config};
  launch(weigh, Grid{blocks_for(tokens, block_warps), 256}, stream_, task);
  GroupParts table{.chosen = chosen.as<std::int32_t>(),
                   .share = share.as<double>(),
                   .chosen_part = chosen.as<std::int32_t>(),
                   .share_part = share.as<double>(),
                   .counters = nullptr,
                   .parts = parts,
                   .experts = static_cast<int>(experts)};
  if (parts > 1) {
    const std::size_t entries = static_cast<std::size_t>(groups * parts * experts);
    table.share_part = static_cast<double*>(scratch(1, entries * sizeof(double)));
    table.chosen_part = static_cast<std::int32_t*>(scratch(2, entries * sizeof(std::int32_t)));
    table.counters = counters(groups);
  }
  launch(add_tokens, Grid{dim3(static_cast<unsigned>(groups * parts), blocks_for(experts, 128)), 128}, stream_, table,
         task);
}

void CudaStream::balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor, float rate) {
  check_balance_bias(bias, choices, factor);
  launch(nudge, Grid{1, 256}, stream_, bias.as<float>(), choices.as<std::int64_t>(), factor.as<float>(), rate,
         choices.dim(0), bias.dim(0));
}

}  // namespace orthant::cuda
