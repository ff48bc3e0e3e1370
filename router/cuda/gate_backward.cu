// gate_backward: a token is a row in the registers of a few lanes (token_row.h), or a warp walks along a longer one, as
// in gate.cu.
//
// Floor: 4 TE bytes read and as many written; the tokens' choices and the groups' counts come on top.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/launch.h"
#include "core/device/router_checks.h"
#include "router/cuda/token_row.h"
#include "router/rules/gate.h"

namespace orthant::cuda {
namespace {

struct BackwardTask {
  float* dlogits;                       // [T, E]
  const float *dweight, *lse;           // [T, K], [T]
  const std::int32_t *expert, *chosen;  // [T, K], [groups, E]
  const float* logits;                  // [T, E]
  const std::uint8_t* valid;            // [T]
  std::int64_t tokens;
  float aux_scale, z_scale;  // aux_scale 0 where the balance is a constant
  GateConfig config;
  bool vectors;  // rows of logits, dlogits and chosen begin at multiples of 16 bytes
};

__device__ float score_of(ScoreKind kind, float logit, float lse) {
  return kind == ScoreKind::sigmoid ? sigmoid(logit) : expf(logit - lse);
}

// The K choices of a token as they were selected: `expert` no longer knows a second expert that gshard did not keep.
struct Selected {
  const std::int32_t* expert;  // [K]
  Best ranked[2];              // gshard's
  bool again;                  // gshard: the ranked ones count

  __device__ std::int32_t operator[](int k) const {
    return again ? (k == 0 ? ranked[0] : ranked[1]).expert : expert[k];
  }
};

// What the gradient of the sum of dweight * weight needs of a token's choices: router/rules/gate.h,
// gate_weights_backward.
struct WeightsBackward {
  float sum;   // of the selected scores, where weights are divided by it, else 1
  float mean;  // of dweight, weighed by the weights
  bool normalize;

  // What every expert's gradient has, and what that of choice k has besides.
  __device__ float of_all(ScoreKind kind, float score) const {
    return normalize || kind == ScoreKind::sigmoid ? 0.0f : -score * mean;  // a softmax's sum has every logit in it
  }
  __device__ float of_choice(ScoreKind kind, float score, float dweight) const {
    return share_of(slope_of(kind, score), sum) * (dweight - (normalize ? mean : 0.0f));
  }
};

// Of the token of `lanes` lanes that this one belongs to. All lanes of the warp call.
template <int lanes>
__device__ WeightsBackward weights_backward(const BackwardTask& task, std::int64_t t, bool active, float lse,
                                            const Selected& selected) {
  const GateConfig& config = task.config;
  const int k_count = static_cast<int>(config.top_k);
  const bool normalize = config.normalize_weights;
  float sum = 0, dot = 0;  // of the selected scores, and with dweight
  for (int k = lane() % lanes; active && k < k_count; k += lanes) {
    const std::int32_t e = selected[k];
    if (e >= 0) {
      const float s = score_of(config.score, task.logits[t * config.experts + e], lse);
      sum += s;
      dot += s * task.dweight[t * k_count + k];
    }
  }
  sum = normalize ? lanes_sum<lanes>(sum) : 1.0f;
  return {sum, share_of(lanes_sum<lanes>(dot), sum), normalize};
}

// grad += the gradient of the sum of dweight * weight. score: of this lane's slots. All lanes of the warp call.
template <class Shape>
__device__ void add_weights_backward(float (&grad)[Shape::slots], const float (&score)[Shape::slots],
                                     const BackwardTask& task, std::int64_t t, bool active, float lse,
                                     const Selected& selected) {
  const ScoreKind kind = task.config.score;
  const int k_count = static_cast<int>(task.config.top_k);
  const WeightsBackward weights = weights_backward<Shape::lanes>(task, t, active, lse, selected);
  if (!active) {
    return;
  }
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    grad[slot] += weights.of_all(kind, score[slot]);
  }
  for (int k = 0; k < k_count; ++k) {
    const std::int32_t e = selected[k];
    const float dweight = task.dweight[t * k_count + k];
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      grad[slot] += Shape::expert(slot) == e ? weights.of_choice(kind, score[slot], dweight) : 0.0f;
    }
  }
}

// The same where the experts choose: choice k is expert k, and weights are scores.
template <class Shape>
__device__ void add_choices_backward(float (&grad)[Shape::slots], const float (&score)[Shape::slots],
                                     const BackwardTask& task, std::int64_t t, bool active) {
  const int experts = static_cast<int>(task.config.experts);
  float taken[Shape::slots] = {};  // dweight where the expert took the token
  float dot = 0;
  if (active) {
    std::int32_t expert[Shape::slots];
    load_row<Shape>(expert, task.expert + t * experts, experts, false);
    load_row<Shape>(taken, task.dweight + t * experts, experts, false);
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      taken[slot] = expert[slot] < 0 ? 0.0f : taken[slot];
      dot += taken[slot] * score[slot];
    }
  }
  const ScoreKind kind = task.config.score;
  dot = kind == ScoreKind::sigmoid ? 0.0f : lanes_sum<Shape::lanes>(dot);  // only a softmax's sum has every logit in it
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    grad[slot] += slope_of(kind, score[slot]) * (taken[slot] - dot);
  }
}

// What the gradient of the balance loss needs of a token: router/rules/losses.h, balance_backward.
struct BalanceBackward {
  int counted = 0;  // choices that the group counts
  float sum = 0;    // of the scores; 1 of a softmax
  double mean = 0;  // of chosen under the token's own distribution
  double scale = 0;

  __device__ void add(float score, std::int32_t chosen) {
    counted += chosen;
    sum += score;
    mean += static_cast<double>(score) * chosen;
  }
  // After what this lane adds, over the token's lanes. All lanes of the warp call.
  template <int lanes>
  __device__ void finish(const BackwardTask& task) {
    counted = lanes_sum<lanes>(counted);
    sum = task.config.score == ScoreKind::sigmoid ? lanes_sum<lanes>(sum) : 1.0f;
    mean = lanes_sum<lanes>(mean) / sum;
    if (counted != 0 && sum != 0) {
      scale = static_cast<double>(task.aux_scale) * static_cast<double>(task.config.experts) / counted / sum;
    }
  }
  __device__ float of_expert(ScoreKind kind, float score, std::int32_t chosen) const {
    return scale == 0 ? 0.0f : static_cast<float>(scale * static_cast<double>(slope_of(kind, score)) * (chosen - mean));
  }
};

// grad += aux_scale times the balance loss's. All lanes of the warp call.
template <class Shape>
__device__ void add_balance_backward(float (&grad)[Shape::slots], const float (&score)[Shape::slots],
                                     const BackwardTask& task, std::int64_t t, bool active) {
  const int experts = static_cast<int>(task.config.experts);
  const ScoreKind kind = task.config.score;
  std::int32_t chosen[Shape::slots] = {};
  if (active) {
    load_row<Shape>(chosen, task.chosen + t / task.config.group_tokens * experts, experts, task.vectors);
  }
  BalanceBackward balance;
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    balance.add(score[slot], chosen[slot]);
  }
  balance.finish<Shape::lanes>(task);
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    grad[slot] += balance.of_expert(kind, score[slot], chosen[slot]);
  }
}

template <class Shape>
__global__ void __launch_bounds__(256) gate_backward_tokens(BackwardTask task) {
  const GateConfig& config = task.config;
  const int experts = static_cast<int>(config.experts);
  constexpr int block_tokens = 256 / Shape::lanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block_tokens;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * block_tokens + warp() * Shape::tokens_per_warp;
       first < task.tokens; first += step) {
    const std::int64_t t = first + Shape::token_of_warp();
    const bool there = t < task.tokens, active = there && task.valid[t] != 0;
    float score[Shape::slots] = {}, grad[Shape::slots] = {};
    float lse = 0;
    if (active) {
      load_row<Shape>(score, task.logits + t * experts, experts, task.vectors);  // the logits, at first
      lse = task.lse[t];
    }
    Selected selected{task.expert + t * config.top_k, {}, config.second_by_chance};
    if (selected.again) {
      std::uint32_t rank[Shape::slots];
      rank_row<Shape>(rank, score, experts);
      selected.ranked[0] = next_best<Shape>(rank, Best{});
      selected.ranked[1] = next_best<Shape>(rank, selected.ranked[0]);
    }
    const float of_z = 2 * lse * task.z_scale;
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      const bool one = active && Shape::expert(slot) < experts;
      const float logit = score[slot];
      score[slot] = one ? score_of(config.score, logit, lse) : 0.0f;
      if (task.z_scale != 0) {
        const float softmax = config.score == ScoreKind::softmax ? score[slot] : expf(logit - lse);
        grad[slot] = one ? of_z * softmax : 0.0f;
      }
    }
    if (config.experts_choose) {
      add_choices_backward<Shape>(grad, score, task, t, active);
    } else {
      add_weights_backward<Shape>(grad, score, task, t, active, lse, selected);
    }
    if (task.aux_scale != 0) {
      add_balance_backward<Shape>(grad, score, task, t, active);
    }
    if (there) {
      store_row<Shape>(task.dlogits + t * experts, grad, experts, task.vectors);
    }
  }
}

// As gate_backward_tokens, of rows that no registers hold: a warp has a token and walks along its logits.
__global__ void __launch_bounds__(256) gate_backward_long_rows(BackwardTask task) {
  const GateConfig& config = task.config;
  const int experts = static_cast<int>(config.experts), k_count = static_cast<int>(config.top_k);
  const bool experts_choose = config.experts_choose;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * (256 / warp_threads);
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * (256 / warp_threads) + warp(); t < task.tokens;
       t += step) {
    const float* const logits = task.logits + t * experts;
    float* const grad = task.dlogits + t * experts;
    if (task.valid[t] == 0) {
      for (int e = lane(); e < experts; e += warp_threads) {
        grad[e] = 0;
      }
      continue;
    }
    const float lse = task.lse[t];
    const std::int32_t* const expert = task.expert + t * k_count;  // where the experts choose, choice k is expert k
    const float* const dweight = task.dweight + t * k_count;
    const std::int32_t* const chosen = task.chosen + t / config.group_tokens * experts;
    Selected selected{expert, {}, config.second_by_chance};
    if (selected.again) {
      selected.ranked[0] = next_best(logits, experts, Best{});
      selected.ranked[1] = next_best(logits, experts, selected.ranked[0]);
    }
    const WeightsBackward weights = weights_backward<warp_threads>(task, t, true, lse, selected);
    BalanceBackward balance;
    for (int e = lane(); task.aux_scale != 0 && e < experts; e += warp_threads) {
      balance.add(score_of(config.score, logits[e], lse), chosen[e]);
    }
    balance.finish<warp_threads>(task);
    for (int e = lane(); e < experts; e += warp_threads) {
      const float score = score_of(config.score, logits[e], lse);
      float sum = task.z_scale == 0 ? 0.0f : 2 * lse * task.z_scale * expf(logits[e] - lse);
      sum += weights.of_all(config.score, score) + balance.of_expert(config.score, score, chosen[e]);
      if (experts_choose && expert[e] >= 0) {
        sum += weights.of_choice(config.score, score, dweight[e]);
      }
      grad[e] = sum;
    }
    __syncwarp();
    for (int k = lane(); !experts_choose && k < k_count; k += warp_threads) {  // different experts
      const std::int32_t e = selected[k];
      if (e < 0) {
        continue;
      }
      grad[e] += weights.of_choice(config.score, score_of(config.score, logits[e], lse), dweight[k]);
    }
  }
}

}  // namespace

void CudaStream::gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                               const Tensor& chosen, const Tensor& logits, const Tensor& valid, float aux_scale,
                               float z_scale, const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts;
  check_gate_backward(dlogits, dweight, expert, lse, chosen, logits, valid, config);
  const float* const x = logits.as<float>();
  float* const dx = dlogits.as<float>();
  const std::int32_t* const counts = chosen.as<std::int32_t>();
  const BackwardTask task{
      .dlogits = dx,
      .dweight = dweight.as<float>(),
      .lse = lse.as<float>(),
      .expert = expert.as<std::int32_t>(),
      .chosen = counts,
      .logits = x,
      .valid = valid.as<std::uint8_t>(),
      .tokens = tokens,
      .aux_scale = config.experts_choose ? 0.0f : aux_scale,
      .z_scale = z_scale,
      .config = config,
      .vectors = vectorizable(x, experts) && vectorizable(dx, experts) && vectorizable(counts, experts)};
  if (experts > most_experts_in_registers) {
    launch(gate_backward_long_rows, Grid{blocks_for(tokens, 256 / warp_threads), 256}, stream_, task);
    return;
  }
  with_row_shape(experts, [&](auto shape) {
    using Shape = decltype(shape);
    launch(gate_backward_tokens<Shape>, Grid{blocks_for(tokens, 256 / Shape::lanes), 256}, stream_, task);
  });
}

}  // namespace orthant::cuda
