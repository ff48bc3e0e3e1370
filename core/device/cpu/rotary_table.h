// Cosines and sines of rotary positions, computed once per position and kept between calls.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/ops.h>

namespace orthant {

class RotaryTable {
 public:
  // Makes the tables for these positions (>= 0) ready. Angles: position * rotary_frequency(pair, ...).
  void prepare(const std::int32_t* position, std::int64_t rows, const RotaryShape& shape);

  // A value for each pair, for row `t` of the prepared positions, which has `position`.
  const float* cosine(std::int64_t t, std::int64_t position) const { return at(cosine_, t, position); }
  const float* sine(std::int64_t t, std::int64_t position) const { return at(sine_, t, position); }

 private:
  const float* at(const std::vector<float>& table, std::int64_t t, std::int64_t position) const {
    return table.data() + (by_row_ ? t : position) * half_;
  }
  void fill(std::int64_t index, std::int64_t position);

  std::vector<float> cosine_, sine_;   // [positions, half], or [rows, half] where positions are sparse
  std::int64_t half_ = 0, ready_ = 0;  // ready_: positions [0, ready_) are filled
  double theta_ = 0;
  RotaryScaling scaling_;
  bool by_row_ = false;
};

}  // namespace orthant
