// gate and gate_backward: one token at a time, in parallel over runs of tokens of one group.
#include "router/rules/gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/router_checks.h"
#include "router/cpu/scores.h"
#include "router/rules/capacity.h"
#include "router/rules/expert_choice.h"
#include "router/rules/losses.h"

namespace orthant {
namespace {

// expert, weight [tokens of the group, E] where each expert chooses: choice k of a token is expert k, or none.
void choose_by_experts(std::int32_t* expert, float* weight, const float* logits, const float* lse,
                       const std::uint8_t* is_valid, const GateConfig& config) {
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
    choose_tokens(tokens, logits, lse, config.score, experts, e, seats);
    for (const std::int64_t t : tokens) {
      expert[t * experts + e] = static_cast<std::int32_t>(e);
      const float logit = logits[t * experts + e];
      weight[t * experts + e] = config.score == ScoreKind::sigmoid ? fast_sigmoid(logit) : fast_exp(logit - lse[t]);
    }
  }
}

}  // namespace

void CpuStream::gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                     const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                     const RandomKey& key, const GateConfig& config) {
  const std::int64_t experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_gate(expert, weight, lse, chosen, share, logits, valid, token, config);
  std::int32_t* const e_out = expert.as<std::int32_t>();  // [T, K]
  float* const w = weight.as<float>();                    // [T, K]
  const float* const x = logits.as<float>();              // [T, E]
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  const std::int64_t* const global = token.as<std::int64_t>();
  const bool experts_choose = config.experts_choose;
  const Runs runs{groups, config.group_tokens};

  // What each run adds to its group's `share` and `chosen`.
  std::vector<double> share_of_run(groups * runs.per_group() * experts, 0.0);
  std::vector<std::int32_t> chosen_of_run(share_of_run.size(), 0);
  runs.for_each(threads_, [&](std::int64_t run, std::int64_t, std::int64_t first, std::int64_t last) {
    std::vector<float> softmax(experts), sigmoid(softmax);
    double* const shares = share_of_run.data() + run * experts;
    std::int32_t* const counts = chosen_of_run.data() + run * experts;
    for (std::int64_t t = first; t < last; ++t) {
      std::int32_t* const selected = e_out + t * k_count;
      float* const weights = w + t * k_count;
      if (is_valid[t] == 0) {
        lse.as<float>()[t] = 0;
        std::fill_n(selected, k_count, -1);
        std::fill_n(weights, k_count, 0.0f);
        continue;
      }
      const float* const row = x + t * experts;
      const float* score = softmax.data();
      float scale = 1;
      lse.as<float>()[t] = softmax_row(softmax.data(), row, experts);
      if (config.score == ScoreKind::sigmoid) {
        scale = share_of(1, sigmoid_row(sigmoid.data(), row, experts));
        score = sigmoid.data();
      }
#pragma omp simd
      for (std::int64_t e = 0; e < experts; ++e) {
        shares[e] += static_cast<double>(score[e] * scale);
      }
      if (experts_choose) {
        continue;
      }
      select_top(selected, row, experts, k_count);
      gate_weights(weights, score, selected, config);
      for (std::int64_t k = 0; k < counted_choices(config); ++k) {
        ++counts[selected[k]];
      }
      if (config.second_by_chance && !keeps_second(weights[1], key, global[t])) {
        selected[1] = -1;
        weights[1] = 0;
      }
    }
  });
  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t first = g * config.group_tokens;
      std::int32_t* const counts = chosen.as<std::int32_t>() + g * experts;
      double* const shares = share.as<double>() + g * experts;
      std::fill_n(counts, experts, 0);
      std::fill_n(shares, experts, 0.0);
      for (std::int64_t run = g * runs.per_group(); run < (g + 1) * runs.per_group(); ++run) {
        for (std::int64_t e = 0; e < experts; ++e) {
          shares[e] += share_of_run[run * experts + e];
          counts[e] += chosen_of_run[run * experts + e];
        }
      }
      if (experts_choose) {
        choose_by_experts(e_out + first * experts, w + first * experts, x + first * experts, lse.as<float>() + first,
                          is_valid + first, config);
        for (std::int64_t i = 0; i < config.group_tokens * experts; ++i) {
          counts[i % experts] += e_out[first * experts + i] >= 0 ? 1 : 0;
        }
      }
    }
  });
}

void CpuStream::gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                              const Tensor& chosen, const Tensor& logits, const Tensor& valid, float aux_scale,
                              float z_scale, const GateConfig& config) {
  const std::int64_t experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_gate_backward(dlogits, dweight, expert, lse, chosen, logits, valid, config);
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  // The balance of experts that choose is a constant (losses.h).
  const bool balances = aux_scale != 0 && !config.experts_choose;
  const Runs runs{groups, config.group_tokens};
  runs.for_each(threads_, [&](std::int64_t, std::int64_t g, std::int64_t first, std::int64_t last) {
    std::vector<float> softmax(experts), sigmoid(softmax);
    std::int32_t ranked[2];
    const std::int32_t* const counts = chosen.as<std::int32_t>() + g * experts;
    const double factor = balance_factor(counts, experts);
    for (std::int64_t t = first; t < last; ++t) {
      const float* const x = logits.as<float>() + t * experts;
      float* const dx = dlogits.as<float>() + t * experts;
      std::fill_n(dx, experts, 0.0f);
      if (is_valid[t] == 0) {
        continue;
      }
      const float* score = softmax.data();
      if (config.score == ScoreKind::softmax || z_scale != 0) {
        softmax_row_again(softmax.data(), x, lse.as<float>()[t], experts);
      }
      if (config.score == ScoreKind::sigmoid) {
        sigmoid_row(sigmoid.data(), x, experts);
        score = sigmoid.data();
      }
      const std::int32_t* selected = expert.as<std::int32_t>() + t * k_count;
      if (config.second_by_chance) {
        // Selected again from the logits: `expert` no longer knows a second expert that was not kept.
        select_top(ranked, x, experts, 2);
        selected = ranked;
      }
      gate_weights_backward(dx, dweight.as<float>() + t * k_count, score, selected, config);
      if (balances) {
        balance_backward(dx, score, counts, factor, aux_scale, config);
      }
      if (z_scale != 0) {
        z_backward(dx, softmax.data(), lse.as<float>()[t], z_scale, experts);
      }
    }
  });
}

}  // namespace orthant
