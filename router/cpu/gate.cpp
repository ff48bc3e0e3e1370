// gate and gate_backward: one token at a time, tokens in parallel.
#include "router/gate.h"

#include <algorithm>
#include <vector>

#include "core/cpu/cpu_stream.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "router/capacity.h"
#include "router/checks.h"
#include "router/expert_choice.h"
#include "router/losses.h"

namespace orthant {
namespace {

// probability[e] = softmax(logits)[e] for e in [0, experts).
void softmax_row(float* probability, const float* logits, std::int64_t experts) {
  float greatest = logits[0];
#pragma omp simd reduction(max : greatest)
  for (std::int64_t e = 0; e < experts; ++e) {
    greatest = logits[e] > greatest ? logits[e] : greatest;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < experts; ++e) {
    probability[e] = fast_exp(logits[e] - greatest);
    sum += probability[e];
  }
  const float scale = 1 / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) {
    probability[e] *= scale;
  }
}

// expert, weight [tokens of the group, E] where each expert chooses: choice k of a token is expert k, or none.
void choose_by_experts(std::int32_t* expert, float* weight, const float* probability, const std::uint8_t* is_valid,
                       const GateConfig& config) {
  const std::int64_t experts = config.experts;
  std::fill_n(expert, config.group_tokens * experts, -1);
  std::fill_n(weight, config.group_tokens * experts, 0.0f);
  std::vector<std::int64_t> valid, tokens;
  for (std::int64_t t = 0; t < config.group_tokens; ++t) {
    if (is_valid[t] != 0) {
      valid.push_back(t);
    }
  }
  const std::int64_t seats = capacity(config, static_cast<std::int64_t>(valid.size()));
  for (std::int64_t e = 0; e < experts; ++e) {
    tokens = valid;
    choose_tokens(tokens, probability, experts, e, seats);
    for (const std::int64_t t : tokens) {
      expert[t * experts + e] = static_cast<std::int32_t>(e);
      weight[t * experts + e] = probability[t * experts + e];
    }
  }
}

}  // namespace

void CpuStream::gate(const Tensor& probability, const Tensor& expert, const Tensor& weight, const Tensor& chosen,
                     const Tensor& logits, const Tensor& valid, const Tensor& token, const RandomKey& key,
                     const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_gate_config("gate", config, tokens);
  require(config.router != RouterKind::expert_choice || config.capacity_factor > 0,
          "gate: experts that choose need a capacity_factor above 0, it is {}", config.capacity_factor);
  check_arguments("gate", {{"logits", logits, DType::f32, {tokens, experts}},
                           {"probability", probability, DType::f32, {tokens, experts}},
                           {"expert", expert, DType::i32, {tokens, k_count}},
                           {"weight", weight, DType::f32, {tokens, k_count}},
                           {"chosen", chosen, DType::i32, {groups, experts}},
                           {"valid", valid, DType::u8, {tokens}},
                           {"token", token, DType::i64, {tokens}}});
  float* const p = probability.as<float>();               // [T, E]
  std::int32_t* const e_out = expert.as<std::int32_t>();  // [T, K]
  float* const w = weight.as<float>();                    // [T, K]
  std::int32_t* const count = chosen.as<std::int32_t>();  // [G, E]
  const float* const x = logits.as<float>();              // [T, E]
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  const std::int64_t* const global = token.as<std::int64_t>();

  parallel_for(threads_, tokens, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::int32_t* const selected = e_out + t * k_count;
      float* const weights = w + t * k_count;
      if (is_valid[t] == 0) {
        std::fill_n(p + t * experts, experts, 0.0f);
        std::fill_n(selected, k_count, -1);
        std::fill_n(weights, k_count, 0.0f);
        continue;
      }
      softmax_row(p + t * experts, x + t * experts, experts);
      if (config.router == RouterKind::expert_choice) {
        continue;
      }
      select_top(selected, x + t * experts, experts, k_count);
      gate_weights(weights, p + t * experts, selected, config);
      if (config.router == RouterKind::gshard && !keeps_second(weights[1], key, global[t])) {
        selected[1] = -1;
        weights[1] = 0;
      }
    }
  });
  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    std::fill(count + begin * experts, count + end * experts, 0);
    for (std::int64_t g = begin; g < end && config.router == RouterKind::expert_choice; ++g) {
      const std::int64_t first = g * config.group_tokens;
      choose_by_experts(e_out + first * experts, w + first * experts, p + first * experts, is_valid + first, config);
    }
    for (std::int64_t t = begin * config.group_tokens; t < end * config.group_tokens; ++t) {
      for (std::int64_t k = 0; is_valid[t] != 0 && k < counted_choices(config); ++k) {
        const std::int32_t e = e_out[t * k_count + k];
        if (e >= 0) {
          ++count[t / config.group_tokens * experts + e];
        }
      }
    }
  });
}

void CpuStream::gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& probability,
                              const Tensor& expert, const Tensor& weight, const Tensor& chosen, const Tensor& logits,
                              const Tensor& valid, float aux_scale, float z_scale, const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_gate_config("gate_backward", config, tokens);
  check_arguments("gate_backward", {{"logits", logits, DType::f32, {tokens, experts}},
                                    {"dlogits", dlogits, DType::f32, {tokens, experts}},
                                    {"dweight", dweight, DType::f32, {tokens, k_count}},
                                    {"probability", probability, DType::f32, {tokens, experts}},
                                    {"expert", expert, DType::i32, {tokens, k_count}},
                                    {"weight", weight, DType::f32, {tokens, k_count}},
                                    {"chosen", chosen, DType::i32, {groups, experts}},
                                    {"valid", valid, DType::u8, {tokens}}});
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  const bool experts_choose = config.router == RouterKind::expert_choice;
  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    std::int32_t ranked[max_top_k];
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t first = g * config.group_tokens, last = first + config.group_tokens;
      const double factor = balance_factor(chosen.as<std::int32_t>() + g * experts, experts);
      for (std::int64_t t = first; t < last; ++t) {
        const float* const x = logits.as<float>() + t * experts;
        const float* const p = probability.as<float>() + t * experts;
        float* const dx = dlogits.as<float>() + t * experts;
        std::fill_n(dx, experts, 0.0f);
        if (is_valid[t] == 0) {
          continue;
        }
        const std::int32_t* selected = expert.as<std::int32_t>() + t * k_count;
        if (!experts_choose) {
          // Selected again from the logits: `expert` no longer knows a second expert that gshard did not keep.
          select_top(ranked, x, experts, k_count);
          selected = ranked;
        }
        gate_weights_backward(dx, dweight.as<float>() + t * k_count, p, selected, config);
        if (aux_scale != 0 && !experts_choose) {  // the balance of experts that choose is a constant (losses.h)
          balance_backward(dx, p, chosen.as<std::int32_t>() + g * experts, factor, aux_scale, experts);
        }
        if (z_scale != 0) {
          z_backward(dx, p, logsumexp_of(x, p, experts), z_scale, experts);
        }
      }
    }
  });
}

}  // namespace orthant
