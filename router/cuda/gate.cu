// gate: choice, weights, logsumexp, and what the balance loss needs of each group, in one pass over the logits.
//
// A token is a row in the registers of a few lanes (token_row.h), or a warp walks along a longer one. A block takes
// tokens of one group; its counts and shares go to the group's at once where it is the only one, else to a table that
// the group's last block adds up in order. Floor: 4 TE bytes read, 8 TK + 4 T written; tables are 12 E bytes for each
// 64 tokens.
#include <algorithm>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/launch.h"
#include "core/device/router_checks.h"
#include "router/cuda/add_parts.h"
#include "router/cuda/expert_choice.h"
#include "router/cuda/token_row.h"
#include "router/rules/gate.h"
#include "router/rules/losses.h"

namespace orthant::cuda {
namespace {

struct GateTask {
  std::int32_t* expert;       // [T, K]
  float* weight;              // [T, K]
  float* lse;                 // [T]
  GroupParts parts;           // of groups, one for each of their blocks
  const float* logits;        // [T, E]
  const std::uint8_t* valid;  // [T]
  const std::int64_t* token;  // [T]
  RandomKey key;
  GateConfig config;
  bool vectors;  // rows of logits begin at multiples of 16 bytes
};

// The tokens of this block, all of one group.
struct BlockTokens {
  std::int64_t begin, end;
};
__device__ BlockTokens tokens_of_block(const GateTask& task) {
  const std::int64_t group_tokens = task.config.group_tokens, group = blockIdx.x / task.parts.parts;
  const std::int64_t begin = group * group_tokens + blockIdx.x % task.parts.parts * block_tokens;
  return {begin, min(begin + block_tokens, (group + 1) * group_tokens)};
}

// What a token that is not routed has for choices. place: of this lane among those of the token.
__device__ void choose_nothing(const GateTask& task, std::int64_t t, int place, int lanes) {
  const int k_count = static_cast<int>(task.config.top_k);
  for (int k = place; k < k_count; k += lanes) {
    task.expert[t * k_count + k] = -1;
    task.weight[t * k_count + k] = 0;
  }
}

// The K choices of the token of `lanes` lanes that this one belongs to: `first`, then next(the one before).
// score(logit): of the token. counts [E], of the block. All lanes of the warp call; active: the token is there and is
// to be routed.
template <int lanes, class N, class F>
__device__ void choose(const GateTask& task, std::int64_t t, bool active, Best first, const N& next, const F& score,
                       std::int32_t* counts) {
  const GateConfig& config = task.config;
  const int place = lane() % lanes;
  const int k_count = static_cast<int>(config.top_k), counted = static_cast<int>(counted_choices(config));
  const bool normalize = config.normalize_weights;
  std::int32_t* const expert = task.expert + t * k_count;
  float* const weight = task.weight + t * k_count;
  float sum = 0, own = 0, last = 0;
  Best best = first;
  // Choice k is written by lane k of the token; with more choices than lanes, they take turns.
  for (int k = 0; k < k_count; ++k) {
    best = k == 0 ? first : next(best);
    last = score(from_rank(best.rank));
    sum += last;
    if (active && k % lanes == place) {
      own = last;
      expert[k] = best.expert;
      if (k_count > lanes) {
        weight[k] = own;
      }
      if (k < counted) {
        atomicAdd(counts + best.expert, 1);
      }
    }
  }
  if (!active) {
    return;
  }
  if (k_count > lanes) {
    for (int k = place; normalize && k < k_count; k += lanes) {
      weight[k] = share_of(weight[k], sum);
    }
  } else if (place < k_count) {
    weight[place] = normalize ? share_of(own, sum) : own;
  }
  if (config.second_by_chance && place == 1 && !keeps_second(share_of(last, sum), task.key, task.token[t])) {
    expert[1] = -1;
    weight[1] = 0;
  }
}

template <class Shape>
__global__ void __launch_bounds__(256, 1) gate_tokens(GateTask task) {
  const GateConfig& config = task.config;
  const int experts = static_cast<int>(config.experts);
  const bool experts_choose = config.experts_choose;
  const bool by_sigmoid = config.score == ScoreKind::sigmoid;
  double* const shares = dynamic_shared<double>();                                 // [E]
  std::int32_t* const counts = reinterpret_cast<std::int32_t*>(shares + experts);  // [E]
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    shares[e] = 0;
    counts[e] = 0;
  }
  __syncthreads();

  const auto [begin, end] = tokens_of_block(task);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  double sums[Shape::slots] = {};  // of each expert's share, over this lane's tokens
  for (std::int64_t first = begin + warp() * Shape::tokens_per_warp; first < end;
       first += warps * Shape::tokens_per_warp) {
    const std::int64_t t = first + Shape::token_of_warp();
    const bool there = t < end, active = there && task.valid[t] != 0;
    float logits[Shape::slots] = {};
    if (active) {
      load_row<Shape>(logits, task.logits + t * experts, experts, task.vectors);
    }
    std::uint32_t rank[Shape::slots];
    rank_row<Shape>(rank, logits, experts);
    const Best top = next_best<Shape>(rank, Best{});
    const float greatest = from_rank(top.rank);
    float sum = 0, sum_sigmoids = 0;
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      const bool one = Shape::expert(slot) < experts;
      const float x = one ? expf(logits[slot] - greatest) : 0.0f;
      sum += x;
      if (by_sigmoid) {
        logits[slot] = one ? sigmoid(logits[slot]) : 0.0f;
        sum_sigmoids += logits[slot];
      } else {
        logits[slot] = x;
      }
    }
    sum = lanes_sum<Shape::lanes>(sum);
    sum_sigmoids = lanes_sum<Shape::lanes>(sum_sigmoids);
    const float scale = 1 / sum, part = by_sigmoid ? share_of(1, sum_sigmoids) : scale;
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      sums[slot] += active ? static_cast<double>(logits[slot] * part) : 0.0;
    }
    if (!experts_choose) {
      choose<Shape::lanes>(
          task, t, active, top, [&](Best last) { return next_best<Shape>(rank, last); },
          [&](float logit) { return by_sigmoid ? sigmoid(logit) : expf(logit - greatest) * scale; }, counts);
      if (there && !active) {
        choose_nothing(task, t, Shape::place(), Shape::lanes);
      }
    }
    if (there && Shape::place() == 0) {
      task.lse[t] = active ? greatest + logf(sum) : 0.0f;
    }
  }

  // The lanes that have the same experts, of the warp and then of one warp after another.
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
#pragma unroll
    for (int offset = warp_threads / 2; offset >= Shape::lanes; offset /= 2) {
      sums[slot] += __shfl_xor_sync(all_lanes, sums[slot], offset);
    }
  }
  for (int w = 0; w < warps; ++w) {
    if (warp() == w && Shape::token_of_warp() == 0) {
#pragma unroll
      for (int slot = 0; slot < Shape::slots; ++slot) {
        if (Shape::expert(slot) < experts) {
          shares[Shape::expert(slot)] += sums[slot];
        }
      }
    }
    __syncthreads();
  }
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    task.parts.share_part[static_cast<std::int64_t>(blockIdx.x) * experts + e] = shares[e];
    if (!experts_choose) {
      task.parts.chosen_part[static_cast<std::int64_t>(blockIdx.x) * experts + e] = counts[e];
    }
  }
  add_parts_if_last(task.parts, blockIdx.x / task.parts.parts, task.parts.parts);
}

// As gate_tokens, of rows that no registers hold: a warp has a token and walks along its logits, once for the
// logsumexp and once for each choice; then each thread has some of the experts and adds up the tokens' shares.
__global__ void __launch_bounds__(256, 1) gate_long_rows(GateTask task) {
  ORTHANT_SHARED(float, greatest_of, [block_tokens]);
  ORTHANT_SHARED(float, part_of, [block_tokens]);  // what a token's scores are multiplied by
  const GateConfig& config = task.config;
  const int experts = static_cast<int>(config.experts);
  const bool by_sigmoid = config.score == ScoreKind::sigmoid;
  std::int32_t* const counts = task.parts.chosen_part + static_cast<std::int64_t>(blockIdx.x) * experts;  // [E]
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    counts[e] = 0;
  }
  __syncthreads();

  const auto [begin, end] = tokens_of_block(task);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  for (std::int64_t t = begin + warp(); t < end; t += warps) {
    if (task.valid[t] == 0) {
      choose_nothing(task, t, lane(), warp_threads);
      if (lane() == 0) {
        task.lse[t] = 0;
      }
      continue;
    }
    const float* const logits = task.logits + t * experts;
    const Best top = next_best(logits, experts, Best{});
    const float greatest = from_rank(top.rank);
    float sum = 0, sum_sigmoids = 0;
    for (int e = lane(); e < experts; e += warp_threads) {
      sum += expf(logits[e] - greatest);
      sum_sigmoids += by_sigmoid ? sigmoid(logits[e]) : 0.0f;
    }
    sum = warp_sum(sum);
    sum_sigmoids = warp_sum(sum_sigmoids);
    const float scale = 1 / sum;
    if (lane() == 0) {
      task.lse[t] = greatest + logf(sum);
      greatest_of[t - begin] = greatest;
      part_of[t - begin] = by_sigmoid ? share_of(1, sum_sigmoids) : scale;
    }
    if (!config.experts_choose) {
      choose<warp_threads>(
          task, t, true, top, [&](Best last) { return next_best(logits, experts, last); },
          [&](float logit) { return by_sigmoid ? sigmoid(logit) : expf(logit - greatest) * scale; }, counts);
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      if (task.valid[t] != 0) {
        const float logit = task.logits[t * experts + e];
        const float score = by_sigmoid ? sigmoid(logit) : expf(logit - greatest_of[t - begin]);
        sum += static_cast<double>(score * part_of[t - begin]);
      }
    }
    task.parts.share_part[static_cast<std::int64_t>(blockIdx.x) * experts + e] = sum;
  }
  add_parts_if_last(task.parts, blockIdx.x / task.parts.parts, task.parts.parts);
}

}  // namespace

void CudaStream::gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                      const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                      const RandomKey& key, const GateConfig& config) {
  const std::int64_t experts = config.experts;
  const std::int64_t groups = check_gate(expert, weight, lse, chosen, share, logits, valid, token, config);
  const bool experts_choose = config.experts_choose;
  const std::int64_t parts = (config.group_tokens + block_tokens - 1) / block_tokens, blocks = groups * parts;
  require(blocks <= 2147483647, "gate: {} groups of {} tokens are too many for one launch", groups,
          config.group_tokens);
  GroupParts table{.chosen = experts_choose ? nullptr : chosen.as<std::int32_t>(),
                   .share = share.as<double>(),
                   .chosen_part = chosen.as<std::int32_t>(),
                   .share_part = share.as<double>(),
                   .counters = nullptr,
                   .parts = parts,
                   .experts = static_cast<int>(experts)};
  if (parts > 1) {
    const std::size_t entries = static_cast<std::size_t>(blocks * experts);
    table.share_part = static_cast<double*>(scratch(0, entries * sizeof(double)));
    table.chosen_part = static_cast<std::int32_t*>(scratch(1, entries * sizeof(std::int32_t)));
    table.counters = counters(groups);
  }
  const float* const x = logits.as<float>();
  const GateTask task{.expert = expert.as<std::int32_t>(),
                      .weight = weight.as<float>(),
                      .lse = lse.as<float>(),
                      .parts = table,
                      .logits = x,
                      .valid = valid.as<std::uint8_t>(),
                      .token = token.as<std::int64_t>(),
                      .key = key,
                      .config = config,
                      .vectors = vectorizable(x, experts)};
  if (experts > most_experts_in_registers) {
    launch(gate_long_rows, Grid{static_cast<unsigned>(blocks), 256}, stream_, task);
  } else {
    with_row_shape(experts, [&](auto shape) {
      using Shape = decltype(shape);
      const int threads = std::min(256, block_tokens * Shape::lanes);
      launch(gate_tokens<Shape>,
             Grid{static_cast<unsigned>(blocks), threads, device_.shared(static_cast<std::size_t>(experts) * 12)},
             stream_, task);
    });
  }
  if (experts_choose) {
    choose_by_experts(stream_, expert, weight, chosen, logits, lse, valid, config);
  }
}

}  // namespace orthant::cuda
