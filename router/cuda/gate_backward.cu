// gate_backward: a token is a row in the registers of a few lanes (token_row.h), as in gate.cu.
//
// Floor: 4 TE bytes read and as many written; the tokens' choices and the groups' counts come on top.
#include "core/cuda/cuda_stream.h"
#include "core/cuda/launch.h"
#include "router/checks.h"
#include "router/cuda/token_row.h"
#include "router/gate.h"

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

// grad += the gradient of the sum of dweight * weight, for K choices of a token: router/gate.h, gate_weights_backward.
// score: of this lane's slots. ranked: gshard's two experts. All lanes of the warp call.
template <class Shape>
__device__ void add_weights_backward(float (&grad)[Shape::slots], const float (&score)[Shape::slots],
                                     const BackwardTask& task, std::int64_t t, bool active, float lse,
                                     const Best (&ranked)[2]) {
  const GateConfig& config = task.config;
  const int k_count = static_cast<int>(config.top_k);
  const bool again = config.router == RouterKind::gshard, normalize = normalizes(config);
  float sum = 0, dot = 0;  // of the selected scores, and with dweight
  for (int k = Shape::place(); active && k < k_count; k += Shape::lanes) {
    const std::int32_t e = again ? (k == 0 ? ranked[0] : ranked[1]).expert : task.expert[t * k_count + k];
    if (e >= 0) {
      const float s = score_of(config.score, task.logits[t * config.experts + e], lse);
      sum += s;
      dot += s * task.dweight[t * k_count + k];
    }
  }
  sum = normalize ? row_sum<Shape>(sum) : 1.0f;
  dot = row_sum<Shape>(dot);
  if (!active) {
    return;
  }
  const float mean = share_of(dot, sum);
  if (!normalize && config.score == ScoreKind::softmax) {  // whose sum has every logit in it
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      grad[slot] -= score[slot] * mean;
    }
  }
  for (int k = 0; k < k_count; ++k) {
    const std::int32_t e = again ? (k == 0 ? ranked[0] : ranked[1]).expert : task.expert[t * k_count + k];
    const float factor = (task.dweight[t * k_count + k] - (normalize ? mean : 0.0f));
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      grad[slot] += Shape::expert(slot) == e ? share_of(slope_of(config.score, score[slot]), sum) * factor : 0.0f;
    }
  }
}

// The same where the experts choose: choice k is expert k, and weights are softmax scores.
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
  dot = row_sum<Shape>(dot);
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    grad[slot] += score[slot] * (taken[slot] - dot);
  }
}

// grad += aux_scale times the balance loss's: router/losses.h, balance_backward. All lanes of the warp call.
template <class Shape>
__device__ void add_balance_backward(float (&grad)[Shape::slots], const float (&score)[Shape::slots],
                                     const BackwardTask& task, std::int64_t t, bool active) {
  const int experts = static_cast<int>(task.config.experts);
  const ScoreKind kind = task.config.score;
  std::int32_t chosen[Shape::slots] = {};
  if (active) {
    load_row<Shape>(chosen, task.chosen + t / task.config.group_tokens * experts, experts, task.vectors);
  }
  int counted = 0;
  float sum = 0;
  double mean = 0;
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    counted += chosen[slot];
    sum += score[slot];
    mean += static_cast<double>(score[slot]) * chosen[slot];
  }
  counted = row_sum<Shape>(counted);
  sum = kind == ScoreKind::sigmoid ? row_sum<Shape>(sum) : 1.0f;
  mean = row_sum<Shape>(mean) / sum;
  if (!active || counted == 0 || sum == 0) {
    return;
  }
  const double scale = static_cast<double>(task.aux_scale) * experts / counted / sum;
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    grad[slot] += static_cast<float>(scale * static_cast<double>(slope_of(kind, score[slot])) * (chosen[slot] - mean));
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
    Best ranked[2];
    if (config.router == RouterKind::gshard) {  // `expert` no longer knows a second expert that was not kept
      std::uint32_t rank[Shape::slots];
      rank_row<Shape>(rank, score, experts);
      ranked[0] = next_best<Shape>(rank, Best{});
      ranked[1] = next_best<Shape>(rank, ranked[0]);
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
    if (config.router == RouterKind::expert_choice) {
      add_choices_backward<Shape>(grad, score, task, t, active);
    } else {
      add_weights_backward<Shape>(grad, score, task, t, active, lse, ranked);
    }
    if (task.aux_scale != 0) {
      add_balance_backward<Shape>(grad, score, task, t, active);
    }
    if (there) {
      store_row<Shape>(task.dlogits + t * experts, grad, experts, task.vectors);
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
      .aux_scale = config.router == RouterKind::expert_choice ? 0.0f : aux_scale,
      .z_scale = z_scale,
      .config = config,
      .vectors = vectorizable(x, experts) && vectorizable(dx, experts) && vectorizable(counts, experts)};
  with_row_shape("gate_backward", experts, [&](auto shape) {
    using Shape = decltype(shape);
    launch(gate_backward_tokens<Shape>, Grid{blocks_for(tokens, 256 / Shape::lanes), 256}, stream_, task);
  });
}

}  // namespace orthant::cuda
