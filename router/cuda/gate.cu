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
#include "router/cuda/top_keys.h"
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

// Writes choice k, which the lane at place k of the token's `lanes` has, of as many or fewer. score(logit): of the
// token. counts [E], of the block. All lanes of the warp call; active: the token is there and is to be routed.
template <int lanes, class F>
__device__ void write_choices(const GateTask& task, std::int64_t t, bool active, int expert, float logit,
                              const F& score, std::int32_t* counts) {
  const GateConfig& config = task.config;
  const int place = lane() % lanes;
  const int k_count = static_cast<int>(config.top_k);
  const bool one = active && place < k_count;
  float own = one ? score(logit) : 0.0f;
  const float sum = lanes_sum<lanes>(own);
  if (!one) {
    return;
  }
  if (place < static_cast<int>(counted_choices(config))) {
    atomicAdd(counts + expert, 1);
  }
  if (config.second_by_chance && place == 1 && !keeps_second(share_of(own, sum), task.key, task.token[t])) {
    expert = -1;
    own = 0;
  }
  task.expert[t * k_count + place] = expert;
  task.weight[t * k_count + place] = config.normalize_weights ? share_of(own, sum) : own;
}

// The K choices of the token of `lanes` lanes that this one belongs to: `first`, then next(the one before). All lanes
// of the warp call, with the rest as above.
template <int lanes, class N, class F>
__device__ void choose(const GateTask& task, std::int64_t t, bool active, Best first, const N& next, const F& score,
                       std::int32_t* counts) {
  const GateConfig& config = task.config;
  const int place = lane() % lanes;
  const int k_count = static_cast<int>(config.top_k);
  if (k_count <= lanes) {
    Best best = first, own = first;
    for (int k = 1; k < k_count; ++k) {
      best = next(best);
      own = k == place ? best : own;
    }
    write_choices<lanes>(task, t, active, own.expert, from_rank(own.rank), score, counts);
    return;
  }
  // More choices than lanes: these take turns. There is no second choice by chance, which is one of two.
  const int counted = static_cast<int>(counted_choices(config));
  std::int32_t* const expert = task.expert + t * k_count;
  float* const weight = task.weight + t * k_count;
  float sum = 0;
  Best best = first;
  for (int k = 0; k < k_count; ++k) {
    best = k == 0 ? first : next(best);
    const float own = score(from_rank(best.rank));
    sum += own;
    if (active && k % lanes == place) {
      expert[k] = best.expert;
      weight[k] = own;
      if (k < counted) {
        atomicAdd(counts + best.expert, 1);
      }
    }
  }
  for (int k = place; active && config.normalize_weights && k < k_count; k += lanes) {
    weight[k] = share_of(weight[k], sum);
  }
}

// The choices of a token in registers, by keys if they tell them apart. The row is loaded again if they do not: that is
// rare, and registers are few. All lanes of the warp call; the rest as above.
template <class Shape, class F>
__device__ void choose_of_row(const GateTask& task, std::int64_t t, bool active,
                              const std::uint32_t (&rank)[Shape::slots], const F& score, std::int32_t* counts) {
  const int experts = static_cast<int>(task.config.experts), k_count = static_cast<int>(task.config.top_k);
  const float* const row = task.logits + t * experts;
  bool apart = false;
  int expert = 0;
  if (k_count <= Shape::lanes) {
    TopKeys<Shape> keys(rank, experts);
    apart = keys.choose(expert, k_count) || !active;
  }
  if (__all_sync(all_lanes, apart)) {
    const float logit = active && Shape::place() < k_count ? row[expert] : 0.0f;  // by now in the first-level cache
    write_choices<Shape::lanes>(task, t, active, expert, logit, score, counts);
    return;
  }
  float logits[Shape::slots] = {};
  if (active) {
    load_row<Shape>(logits, row, experts, task.vectors);
  }
  std::uint32_t again[Shape::slots];
  rank_row<Shape>(again, logits, experts);
  choose<Shape::lanes>(
      task, t, active, next_best<Shape>(again, Best{}), [&](Best last) { return next_best<Shape>(again, last); }, score,
      counts);
}

// Blocks of a multiprocessor: as many as registers allow, so that a call has all its blocks there at once.
template <class Shape>
inline constexpr int gate_blocks = Shape::slots <= 4    ? 5
                                   : Shape::slots <= 8  ? 3
                                   : Shape::slots <= 16 ? 2
                                                        : 1;

template <class Shape>
__global__ void __launch_bounds__(256, gate_blocks<Shape>) gate_tokens(GateTask task) {
  const GateConfig& config = task.config;
  const int experts = static_cast<int>(config.experts);
  const bool experts_choose = config.experts_choose;
  const bool by_sigmoid = config.score == ScoreKind::sigmoid;
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  double* const shares = dynamic_shared<double>();                                         // [warps, E]
  std::int32_t* const counts = reinterpret_cast<std::int32_t*>(shares + warps * experts);  // [E]
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    counts[e] = 0;
  }
  __syncthreads();

  const auto [begin, end] = tokens_of_block(task);
  double sums[Shape::slots] = {};  // of each expert's share, over this lane's tokens
  for (std::int64_t first = begin + warp() * Shape::tokens_per_warp; first < end;
       first += warps * Shape::tokens_per_warp) {
    const std::int64_t t = first + Shape::token_of_warp();
    const bool there = t < end;
    float logits[Shape::slots] = {};
    if (there) {  // a padding token's too: one wait for both loads
      load_row<Shape>(logits, task.logits + t * experts, experts, task.vectors);
    }
    const bool active = there && task.valid[t] != 0;
    std::uint32_t rank[Shape::slots];
    rank_row<Shape>(rank, logits, experts);
    std::uint32_t top = rank[0];
#pragma unroll
    for (int slot = 1; slot < Shape::slots; ++slot) {
      top = max(top, rank[slot]);
    }
    const float greatest = from_rank(lanes_max<Shape::lanes>(top));
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
    const float scale = 1 / sum;
    float part = scale;
    if (by_sigmoid) {
      part = share_of(1, lanes_sum<Shape::lanes>(sum_sigmoids));
    }
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      sums[slot] += active ? static_cast<double>(logits[slot] * part) : 0.0;
    }
    if (!experts_choose) {
      choose_of_row<Shape>(
          task, t, active, rank,
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
    if (Shape::token_of_warp() == 0 && Shape::expert(slot) < experts) {
      shares[warp() * experts + Shape::expert(slot)] = sums[slot];
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    double share = 0;
    for (int w = 0; w < warps; ++w) {
      share += shares[w * experts + e];
    }
    task.parts.share_part[static_cast<std::int64_t>(blockIdx.x) * experts + e] = share;
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
      const int threads = std::min(256, block_tokens * Shape::lanes), warps = threads / warp_threads;
      const std::size_t shared = static_cast<std::size_t>(experts) * (static_cast<std::size_t>(warps) * 8 + 4);
      launch(gate_tokens<Shape>, Grid{static_cast<unsigned>(blocks), threads, device_.shared(shared)}, stream_, task);
    });
  }
  if (experts_choose) {
    choose_by_experts(stream_, expert, weight, chosen, logits, lse, valid, config);
  }
}

}  // namespace orthant::cuda
