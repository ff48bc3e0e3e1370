// choose_experts, gate_choices, balance_bias: the halves of gate, for gates that choose in another way.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/router_checks.h"
#include "router/cpu/scores.h"
#include "router/rules/gate.h"
#include "router/rules/losses.h"

namespace orthant {
namespace {

// rank[e] = -infinity for experts outside of the token's best groups. value: score + bias, by which groups are ranked.
void leave_groups_out(float* rank, const float* value, const GateConfig& config) {
  const std::int64_t size = config.experts / config.expert_groups;
  float worth[max_expert_groups];
  for (std::int64_t g = 0; g < config.expert_groups; ++g) {
    std::int32_t best[2] = {0, 0};
    select_top(best, value + g * size, size, std::min<std::int64_t>(size, 2));
    worth[g] = group_worth(value[g * size + best[0]], value[g * size + best[1]], size, config.group_score);
  }
  const std::uint64_t selected = select_groups(worth, config.expert_groups, config.groups_per_token);
  for (std::int64_t e = 0; e < config.experts; ++e) {
    if ((selected >> (e / size) & 1) == 0) {
      rank[e] = -INFINITY;
    }
  }
}

}  // namespace

void CpuStream::choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias, const Tensor& valid,
                               const GateConfig& config) {
  check_choose_experts(expert, logits, bias, valid, config);
  const std::int64_t experts = config.experts, k_count = config.top_k;
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  parallel_for(threads_, logits.dim(0), 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> value(experts), rank(value);
    for (std::int64_t t = begin; t < end; ++t) {
      std::int32_t* const selected = expert.as<std::int32_t>() + t * k_count;
      if (is_valid[t] == 0) {
        std::fill_n(selected, k_count, -1);
        continue;
      }
      const float* const row = logits.as<float>() + t * experts;
      if (config.score == ScoreKind::sigmoid) {
        sigmoid_row(value.data(), row, experts);
      } else {
        softmax_row(value.data(), row, experts);
      }
      for (std::int64_t e = 0; bias.defined() && e < experts; ++e) {
        value[e] += bias.as<float>()[e];
      }
      std::copy_n(bias.defined() ? value.data() : row, experts, rank.data());
      if (config.groups_per_token < config.expert_groups) {
        leave_groups_out(rank.data(), value.data(), config);
      }
      select_top(selected, rank.data(), experts, k_count);
    }
  });
}

void CpuStream::gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                             const Tensor& expert, const Tensor& logits, const Tensor& valid,
                             const GateConfig& config) {
  const std::int64_t experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_gate_choices(weight, lse, chosen, share, expert, logits, valid, config);
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  for (std::int64_t i = 0; i < expert.elements(); ++i) {
    const std::int32_t e = expert.as<std::int32_t>()[i];
    require(e >= -1 && e < experts, "gate_choices: choice {} of token {} is expert {} of {}", i % k_count, i / k_count,
            e, experts);
  }
  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> softmax(experts), sigmoid(softmax);
    for (std::int64_t g = begin; g < end; ++g) {
      double* const shares = share.as<double>() + g * experts;
      std::int32_t* const counts = chosen.as<std::int32_t>() + g * experts;
      std::fill_n(shares, experts, 0.0);
      std::fill_n(counts, experts, 0);
      for (std::int64_t t = g * config.group_tokens; t < (g + 1) * config.group_tokens; ++t) {
        const std::int32_t* const selected = expert.as<std::int32_t>() + t * k_count;
        float* const weights = weight.as<float>() + t * k_count;
        if (is_valid[t] == 0) {
          lse.as<float>()[t] = 0;
          std::fill_n(weights, k_count, 0.0f);
          continue;
        }
        const float* const row = logits.as<float>() + t * experts;
        const float* score = softmax.data();
        float scale = 1;
        lse.as<float>()[t] = softmax_row(softmax.data(), row, experts);
        if (config.score == ScoreKind::sigmoid) {
          scale = share_of(1, sigmoid_row(sigmoid.data(), row, experts));
          score = sigmoid.data();
        }
        for (std::int64_t e = 0; e < experts; ++e) {
          shares[e] += static_cast<double>(score[e] * scale);
        }
        gate_weights(weights, score, selected, config);
        for (std::int64_t k = 0; k < counted_choices(config); ++k) {
          if (selected[k] >= 0) {
            ++counts[selected[k]];
          }
        }
      }
    }
  });
}

void CpuStream::balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor, float rate) {
  check_balance_bias(bias, choices, factor);
  if (std::isnan(*factor.as<float>())) {
    return;
  }
  const std::int64_t experts = bias.dim(0);
  std::vector<double> load(experts, 0.0);
  double all = 0;
  for (std::int64_t i = 0; i < choices.elements(); ++i) {
    const double n = static_cast<double>(choices.as<std::int64_t>()[i]);
    load[i % experts] += n;
    all += n;
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    float& b = bias.as<float>()[e];
    b = balanced_bias(b, load[e], all / static_cast<double>(experts), rate);
  }
}

}  // namespace orthant
