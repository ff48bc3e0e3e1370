#include "core/device/cpu/rotary_table.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>

#include "core/device/rotary_rule.h"

namespace orthant {

void RotaryTable::fill(std::int64_t index, std::int64_t position) {
  for (std::int64_t i = 0; i < half_; ++i) {
    const double angle = static_cast<double>(position) * rotary_frequency(i, half_, theta_, scaling_);
    const auto to = static_cast<std::size_t>(index * half_ + i);
    cosine_[to] = static_cast<float>(scaling_.magnitude * std::cos(angle));
    sine_[to] = static_cast<float>(scaling_.magnitude * std::sin(angle));
  }
}

void RotaryTable::prepare(const std::int32_t* position, std::int64_t rows, const RotaryShape& shape) {
  std::int64_t end = 0;
  for (std::int64_t t = 0; t < rows; ++t) {
    require(position[t] >= 0, "rotary positions: position {} of row {} is negative", position[t], t);
    end = std::max<std::int64_t>(end, position[t] + std::int64_t{1});
  }
  const std::int64_t half = rotary_pairs(shape);
  if (half_ != half || theta_ != shape.theta || scaling_ != shape.scaling || by_row_) {
    half_ = half;
    theta_ = shape.theta;
    scaling_ = shape.scaling;
    ready_ = 0;
    by_row_ = false;
  }
  // Far positions of few rows (a late part of a long text) would need a table for all positions before them.
  constexpr std::int64_t always_kept = 1 << 16;
  by_row_ = end > std::max(always_kept, 4 * rows);
  const auto size = static_cast<std::size_t>((by_row_ ? rows : std::max(end, ready_)) * half_);
  cosine_.resize(size);
  sine_.resize(size);
  if (by_row_) {
    for (std::int64_t t = 0; t < rows; ++t) {
      fill(t, position[t]);
    }
    return;
  }
  for (; ready_ < end; ++ready_) {
    fill(ready_, ready_);
  }
}

}  // namespace orthant
