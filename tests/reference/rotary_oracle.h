// Rotary frequencies and factors in the form in which they were published, in fp64, for the tests in this folder.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/arch/rotary.h"

namespace orthant::test::rotary_oracle {

constexpr double pi = 3.14159265358979323846;

// Of `rotated` channels; half as many.
inline std::vector<double> inverse_frequencies(const RotaryKeys& m, std::int64_t rotated) {
  const double channels = static_cast<double>(rotated), length = static_cast<double>(m.rope_original_positions);
  std::vector<double> found;
  for (double pair = 0; pair < channels / 2; ++pair) {
    const double own = std::pow(m.rope_theta, -2 * pair / channels), slow = own / m.rope_factor;
    if (m.rope_scaling == RopeScaling::none) {
      found.push_back(own);
    } else if (m.rope_scaling == RopeScaling::linear) {
      found.push_back(slow);
    } else if (m.rope_scaling == RopeScaling::llama3) {
      const double wave = 2 * pi / own;  // positions of a whole turn
      if (wave > length / m.rope_low_freq_factor) {
        found.push_back(slow);
      } else if (wave < length / m.rope_high_freq_factor) {
        found.push_back(own);
      } else {
        const double smooth =
            (length / wave - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
        found.push_back((1 - smooth) * slow + smooth * own);
      }
    } else {
      // YaRN: the pair that turns `times` times in the original length.
      const auto pair_of = [&](double times) {
        return channels * std::log(length / (2 * pi * times)) / (2 * std::log(m.rope_theta));
      };
      double low = pair_of(m.rope_beta_fast), high = pair_of(m.rope_beta_slow);
      low = std::max(0.0, m.rope_truncate ? std::floor(low) : low);
      high = std::min(channels - 1, m.rope_truncate ? std::ceil(high) : high);
      const double ramp = std::clamp((pair - low) / (high == low ? 0.001 : high - low), 0.0, 1.0);
      found.push_back(ramp * slow + (1 - ramp) * own);
    }
  }
  return found;
}

inline double mscale(const RotaryKeys& m, double weight) {
  return m.rope_factor <= 1 ? 1 : 1 + 0.1 * weight * std::log(m.rope_factor);
}

// Of cosines and sines.
inline double attention_factor(const RotaryKeys& m) {
  if (m.rope_scaling != RopeScaling::yarn) {
    return 1;
  }
  if (m.rope_attention_factor != 0) {
    return m.rope_attention_factor;
  }
  return m.rope_mscale != 0 ? mscale(m, m.rope_mscale) / mscale(m, m.rope_mscale_all_dim) : mscale(m, 1);
}

}  // namespace orthant::test::rotary_oracle
