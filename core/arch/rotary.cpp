#include "core/arch/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orthant {
namespace {

// Longer contexts need sharper attention: YaRN's fit of the temperature, with DeepSeek's weight.
double mscale(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

double attention_factor(const ModelSettings& m) {
  if (m.rope_attention_factor > 0) {
    return m.rope_attention_factor;
  }
  return m.rope_mscale > 0 ? mscale(m.rope_factor, m.rope_mscale) / mscale(m.rope_factor, m.rope_mscale_all_dim)
                           : mscale(m.rope_factor, 1);
}

// Pairs that turn more than high_freq_factor times in the original positions stay, those below low_freq_factor are
// slowed down by the whole factor, and what is kept rises evenly with the turns between.
RotaryScaling llama3(const ModelSettings& m) {
  const double between = m.rope_high_freq_factor - m.rope_low_freq_factor;
  return {.factor = m.rope_factor,
          .at_zero = -m.rope_low_freq_factor / between,
          .by_frequency = static_cast<double>(m.rope_original_positions) / (2 * std::numbers::pi * between)};
}

// What is kept falls evenly with the pair's number, from the pair that turns beta_fast times in the original positions
// to the one that turns beta_slow times.
RotaryScaling yarn(const ModelSettings& m, std::int64_t rotated) {
  const double channels = static_cast<double>(rotated), positions = static_cast<double>(m.rope_original_positions);
  const auto pair_that_turns = [&](double times) {
    return channels * std::log(positions / (times * 2 * std::numbers::pi)) / (2 * std::log(m.rope_theta));
  };
  double first = pair_that_turns(m.rope_beta_fast), last = pair_that_turns(m.rope_beta_slow);
  if (m.rope_truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  // The published code bounds the last pair by channels, not by pairs; so do we.
  first = std::max(first, 0.0);
  last = std::min(last, channels - 1);
  const double between = first == last ? 0.001 : last - first;
  return {.factor = m.rope_factor,
          .at_zero = 1 + first / between,
          .by_pair = -1 / between,
          .magnitude = attention_factor(m)};
}

}  // namespace

RotaryScaling rotary_scaling(const ModelSettings& m, std::int64_t rotated) {
  switch (m.rope_scaling) {
    case RopeScaling::none: return {};
    case RopeScaling::linear: return {.factor = m.rope_factor, .at_zero = 0};
    case RopeScaling::llama3: return llama3(m);
    case RopeScaling::yarn: return yarn(m, rotated);
  }
  return {};
}

RotaryShape rotary_shape(const ModelSettings& m, std::int64_t head_dim, std::int64_t plain) {
  return {.heads = 0,
          .kv_heads = 0,
          .head_dim = head_dim,
          .theta = m.positions == Positions::rotary ? m.rope_theta : 0,
          .scaling = rotary_scaling(m, head_dim - plain),
          .interleaved = m.rope_interleaved,
          .plain = plain};
}

double rotary_score_factor(const ModelSettings& m) {
  const double root = m.rope_scaling == RopeScaling::yarn && m.rope_mscale_all_dim > 0
                          ? mscale(m.rope_factor, m.rope_mscale_all_dim)
                          : 1;
  return root * root;
}

}  // namespace orthant
