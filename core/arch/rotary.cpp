#include "core/arch/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/arch/decoder.h"

namespace orthant {
namespace {

// Longer contexts need sharper attention: YaRN's fit of the temperature, with DeepSeek's weight.
double mscale(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

double attention_factor(const RotaryKeys& m) {
  if (m.rope_attention_factor > 0) {
    return m.rope_attention_factor;
  }
  return m.rope_mscale > 0 ? mscale(m.rope_factor, m.rope_mscale) / mscale(m.rope_factor, m.rope_mscale_all_dim)
                           : mscale(m.rope_factor, 1);
}

// Pairs that turn more than high_freq_factor times in the original positions stay, those below low_freq_factor are
// slowed down by the whole factor, and what is kept rises evenly with the turns between.
RotaryScaling llama3(const RotaryKeys& m) {
  const double between = m.rope_high_freq_factor - m.rope_low_freq_factor;
  return {.factor = m.rope_factor,
          .at_zero = -m.rope_low_freq_factor / between,
          .by_frequency = static_cast<double>(m.rope_original_positions) / (2 * std::numbers::pi * between)};
}

// What is kept falls evenly with the pair's number, from the pair that turns beta_fast times in the original positions
// to the one that turns beta_slow times.
RotaryScaling yarn(const RotaryKeys& m, std::int64_t rotated) {
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

// dynamic: what theta is multiplied by, but for an exponent, in sequences of more than the original positions.
double longer_base(const RotaryKeys& m, std::int64_t positions) {
  return m.rope_factor * static_cast<double>(positions) / static_cast<double>(m.rope_original_positions) -
         (m.rope_factor - 1);
}

RotaryScaling longrope(const RotaryKeys& m, std::int64_t rotated, std::int64_t positions) {
  const std::vector<double>& factors =
      positions > m.rope_original_positions ? m.rope_long_factors : m.rope_short_factors;
  const auto pairs = static_cast<std::size_t>(std::min<std::int64_t>(rotated / 2, most_divided_pairs));
  RotaryScaling scaling{.divided = true};
  for (std::size_t i = 0; i < std::min(pairs, factors.size()); ++i) {
    scaling.divisor[i] = static_cast<float>(factors[i]);
  }
  const double own =
      m.rope_factor <= 1
          ? 1
          : std::sqrt(1 + std::log(m.rope_factor) / std::log(static_cast<double>(m.rope_original_positions)));
  scaling.magnitude = m.rope_attention_factor > 0 ? m.rope_attention_factor : own;
  return scaling;
}

}  // namespace

const Keys<RotaryKeys>& RotaryKeys::keys() {
  static const auto all =
      Keys<RotaryKeys>()
          .add("rope_theta", &RotaryKeys::rope_theta, "Base of the rotary angles (above 0).")
          .after("positions")
          .add("rope_local_theta", &RotaryKeys::rope_local_theta,
               "sliding_window: base of the rotary angles in blocks that have the window, which rope_scaling leaves as "
               "they are (Gemma 3); 0: as in the other blocks.",
               at_least(0))
          .add("rope_interleaved", &RotaryKeys::rope_interleaved,
               "Whether rotary positions turn neighbouring channels (DeepSeek), not those of both halves of a head "
               "(Llama).")
          .after("rotary_channels")
          .choice("rope_scaling", &RotaryKeys::rope_scaling,
                  {"none", "linear", "llama3", "yarn", "longrope", "dynamic"},
                  "How rotary angles are slowed down for sequences longer than those of the first training.")
          .add("rope_factor", &RotaryKeys::rope_factor, "rope_scaling: how many times as long sequences may be.",
               at_least(1))
          .add("rope_original_positions", &RotaryKeys::rope_original_positions,
               "llama3, yarn, longrope, dynamic: positions of a sequence of the first training.", between(0, 1 << 30))
          .add("rope_low_freq_factor", &RotaryKeys::rope_low_freq_factor,
               "llama3: pairs that turn less often in the original positions are slowed down.", at_least(0))
          .add("rope_high_freq_factor", &RotaryKeys::rope_high_freq_factor,
               "llama3: pairs that turn more often in the original positions stay; those between do a part.",
               at_least(0))
          .add("rope_beta_fast", &RotaryKeys::rope_beta_fast,
               "yarn: pairs that turn more often in the original positions stay.", at_least(0))
          .add("rope_beta_slow", &RotaryKeys::rope_beta_slow,
               "yarn: pairs that turn less often in the original positions are slowed down; those between do a part.",
               at_least(0))
          .add("rope_truncate", &RotaryKeys::rope_truncate,
               "yarn: whether the first and the last pair between are rounded outwards, to whole numbers.")
          .add("rope_attention_factor", &RotaryKeys::rope_attention_factor,
               "yarn, longrope: what rotated queries and keys are multiplied by; 0: yarn 0.1 ln(rope_factor) + 1, or "
               "as rope_mscale says; longrope sqrt(1 + ln(rope_factor) / ln(rope_original_positions)).",
               at_least(0))
          .add("rope_mscale", &RotaryKeys::rope_mscale,
               "yarn, as DeepSeek: the attention factor is m(rope_mscale) / m(rope_mscale_all_dim), with m(x) = 0.1 x "
               "ln(rope_factor) + 1; not without rope_mscale_all_dim.",
               at_least(0))
          .add(
              "rope_mscale_all_dim", &RotaryKeys::rope_mscale_all_dim,
              "yarn, as DeepSeek: see rope_mscale; and latent multiplies its scores by m(rope_mscale_all_dim) squared.",
              at_least(0))
          .add("rope_alpha", &RotaryKeys::rope_alpha,
               "dynamic: the base is raised as for sequences so many times as long as the original ones, however long "
               "they are (Hunyuan); 0: for those that are longer.",
               at_least(0))
          .add("rope_short_factors", &RotaryKeys::rope_short_factors,
               "longrope: what divides the frequency of each pair in sequences of at most rope_original_positions.")
          .add("rope_long_factors", &RotaryKeys::rope_long_factors, "longrope: what divides them in longer sequences.");
  return all;
}

double rotary_theta(const RotaryKeys& m, std::int64_t rotated, std::int64_t positions) {
  if (m.rope_scaling != RopeScaling::dynamic) {
    return m.rope_theta;
  }
  const double channels = static_cast<double>(rotated);
  const double longer = m.rope_alpha > 0                        ? m.rope_alpha
                        : positions > m.rope_original_positions ? longer_base(m, positions)
                                                                : 1;
  return m.rope_theta * std::pow(longer, channels / (channels - 2));
}

RotaryScaling rotary_scaling(const RotaryKeys& m, std::int64_t rotated, std::int64_t positions) {
  switch (m.rope_scaling) {
    case RopeScaling::none: return {};
    case RopeScaling::linear: return {.factor = m.rope_factor, .at_zero = 0};
    case RopeScaling::llama3: return llama3(m);
    case RopeScaling::yarn: return yarn(m, rotated);
    case RopeScaling::longrope: return longrope(m, rotated, positions);
    case RopeScaling::dynamic: return {};
  }
  return {};
}

RotaryShape rotary_shape(const Settings& settings, std::int64_t head_dim, std::int64_t plain, int block) {
  const auto m = read_keys<RotaryKeys>(settings.model.own);
  const std::int64_t rotated = head_dim - plain, positions = settings.data.sequence_length;
  const bool local = m.rope_local_theta > 0 && block_has_window(settings, block);
  const double theta = local ? m.rope_local_theta : rotary_theta(m, rotated, positions);
  return {.heads = 0,
          .kv_heads = 0,
          .head_dim = head_dim,
          .theta = settings.model.positions == Positions::rotary ? theta : 0,
          .scaling = local ? RotaryScaling{} : rotary_scaling(m, rotated, positions),
          .interleaved = m.rope_interleaved,
          .plain = plain};
}

void keep_rotary_angles(Settings& settings) {
  auto m = read_keys<RotaryKeys>(settings.model.own);
  const bool longer = settings.data.sequence_length > m.rope_original_positions;
  if (m.rope_scaling == RopeScaling::longrope && longer) {
    m.rope_short_factors = m.rope_long_factors;
  } else if (m.rope_scaling == RopeScaling::dynamic && m.rope_alpha == 0) {
    m.rope_alpha = longer ? longer_base(m, settings.data.sequence_length) : 1;
  }
  write_keys(settings.model.own, m);
}

double rotary_score_factor(const RotaryKeys& m) {
  const double root = m.rope_scaling == RopeScaling::yarn && m.rope_mscale_all_dim > 0
                          ? mscale(m.rope_factor, m.rope_mscale_all_dim)
                          : 1;
  return root * root;
}

}  // namespace orthant
