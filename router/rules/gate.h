// The gate of one token: choice of experts, combine weights and their gradient. Pure functions over
// pointers, used by the loops of every device.
//
// Sources: switch: Fedus et al., "Switch Transformers" (2021). gshard: Lepikhin et al., "GShard" (2020), algorithm 1.
// topk: Shazeer et al., "Outrageously large neural networks" (2017); normalised weights as Mixtral (Jiang et al.,
// 2024). Scores by sigmoid: DeepSeek-AI, "DeepSeek-V3" (2024). expert_choice, where the experts choose:
// expert_choice.h.
#pragma once

#include <cstdint>

#include <orthant/ops.h>
#include <orthant/random.h>

namespace orthant {

// The most experts that a token may choose: bounds the per-token arrays of the functions below.
inline constexpr int max_top_k = 64;
// The most groups that experts can be in: a token's groups are bits of one number.
inline constexpr int max_expert_groups = 64;

// expert[0 .. k) = the k experts with the greatest logits, greatest first; of equal logits the lower index first.
// Logits decide, not scores: their order does not depend on how a device rounds exp. Always k distinct
// experts, whatever the values (a NaN is never greater than another logit).
ORTHANT_HOST_DEVICE inline void select_top(std::int32_t* expert, const float* logits, std::int64_t experts,
                                           std::int64_t k) {
  std::int64_t chosen = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    // Insertion into the list so far: past every entry that is at least as great (and was met earlier).
    std::int64_t at = chosen;
    while (at > 0 && logits[e] > logits[expert[at - 1]]) {
      --at;
    }
    if (at >= k) {
      continue;
    }
    for (std::int64_t i = chosen < k ? chosen : k - 1; i > at; --i) {
      expert[i] = expert[i - 1];
    }
    expert[at] = static_cast<std::int32_t>(e);
    chosen += chosen < k ? 1 : 0;
  }
}

// What a group of experts is worth to a token, from its two greatest score + bias; a group of one has one.
ORTHANT_HOST_DEVICE inline float group_worth(float greatest, float second, std::int64_t size, GroupScore by) {
  return size == 1 || by == GroupScore::max ? greatest : greatest + second;
}

// Bits of the `count` groups of greatest worth, of equal ones the lower.
ORTHANT_HOST_DEVICE inline std::uint64_t select_groups(const float* worth, std::int64_t groups, std::int64_t count) {
  std::uint64_t selected = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t best = -1;
    for (std::int64_t g = 0; g < groups; ++g) {
      if ((selected >> g & 1) == 0 && (best < 0 || worth[g] > worth[best])) {
        best = g;
      }
    }
    selected |= std::uint64_t{1} << best;
  }
  return selected;
}

// What an expert's bias becomes after a step in which `load` choices were its, of `mean` on average.
ORTHANT_HOST_DEVICE inline float balanced_bias(float bias, double load, double mean, float rate) {
  return load < mean ? bias + rate : load > mean ? bias - rate : bias;
}

// Of one part of a sum of scores: its share. Where all scores are 0 in fp32 (sigmoids of logits below -87), 0.
ORTHANT_HOST_DEVICE inline float share_of(float score, float sum) {
  return sum == 0 ? 0.0f : score / sum;
}

// d score / d logit of an expert whose score is `score`, but for a softmax's sum over all experts.
ORTHANT_HOST_DEVICE inline float slope_of(ScoreKind kind, float score) {
  return kind == ScoreKind::sigmoid ? score * (1 - score) : score;
}

// weight[0 .. k) of the selected experts: their scores, or those over their sum; 0 where there is none (-1).
ORTHANT_HOST_DEVICE inline void gate_weights(float* weight, const float* score, const std::int32_t* selected,
                                             const GateConfig& config) {
  float sum = 0;
  for (std::int64_t k = 0; k < config.top_k; ++k) {
    weight[k] = selected[k] < 0 ? 0.0f : score[selected[k]];
    sum += weight[k];
  }
  for (std::int64_t k = 0; config.normalize_weights && k < config.top_k; ++k) {
    weight[k] = share_of(weight[k], sum);
  }
}

// GShard keeps the second expert with probability 2 * weight, weight being normalised and so at most 1/2.
ORTHANT_HOST_DEVICE inline bool keeps_second(float second_weight, const RandomKey& key, std::int64_t token) {
  return uniform(key, static_cast<std::uint64_t>(token)) < 2 * second_weight;
}

// dlogits[0 .. E) += gradient of sum_k dweight[k] * weight[k]. `selected` are the experts as selected, also where
// gshard did not keep the second one; a choice that is not kept has dweight 0 (its weight is the constant 0, while
// the weights of the others still depend on its logit through the sum). -1 is no choice.
ORTHANT_HOST_DEVICE inline void gate_weights_backward(float* dlogits, const float* dweight, const float* score,
                                                      const std::int32_t* selected, const GateConfig& config) {
  float sum = 1;  // of the selected scores, where weights are divided by it
  if (config.normalize_weights) {
    sum = 0;
    for (std::int64_t k = 0; k < config.top_k; ++k) {
      sum += selected[k] < 0 ? 0.0f : score[selected[k]];
    }
  }
  float mean = 0;
  for (std::int64_t k = 0; k < config.top_k; ++k) {
    mean += selected[k] < 0 ? 0.0f : dweight[k] * share_of(score[selected[k]], sum);
  }
  if (config.normalize_weights) {
    for (std::int64_t k = 0; k < config.top_k; ++k) {
      if (selected[k] < 0) {
        continue;
      }
      dlogits[selected[k]] += share_of(slope_of(config.score, score[selected[k]]), sum) * (dweight[k] - mean);
    }
    return;
  }
  if (config.score == ScoreKind::softmax) {  // whose sum has every logit in it
    for (std::int64_t e = 0; e < config.experts; ++e) {
      dlogits[e] -= score[e] * mean;
    }
  }
  for (std::int64_t k = 0; k < config.top_k; ++k) {
    if (selected[k] >= 0) {
      dlogits[selected[k]] += slope_of(config.score, score[selected[k]]) * dweight[k];
    }
  }
}

}  // namespace orthant
