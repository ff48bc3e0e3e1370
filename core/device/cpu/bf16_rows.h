// Rows that are computed in fp32 and stored as bf16, a piece at a time, so that rounding is an instruction of its own
// where the processor has one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "core/device/cpu/bf16.h"

namespace orthant {

// to[i] = to_bf16(from[i]), n of them.
inline void round_row(BFloat16* to, const float* from, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  constexpr int denormal = 0x20;
  for (; i + 32 <= n; i += 32) {
    const __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + 16);
    // The instruction takes denormal numbers for zero, to_bf16 does not.
    if ((_mm512_fpclass_ps_mask(low, denormal) | _mm512_fpclass_ps_mask(high, denormal)) != 0) [[unlikely]] {
      for (std::int64_t j = i; j < i + 32; ++j) {
        to[j] = to_bf16(from[j]);
      }
    } else {
      _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
#endif
  for (; i < n; ++i) {
    to[i] = to_bf16(from[i]);
  }
}

// Calls fn(outs, at, count), which sets outs[r][0 to count) to elements [at, at + count) of row r in fp32, for pieces
// of rows of n elements; fp32 rows are one piece, which fn writes itself.
template <std::size_t rows, class F>
void in_pieces(const std::array<float*, rows>& to, std::int64_t n, F&& fn) {
  fn(to, std::int64_t{0}, n);
}
template <std::size_t rows, class F>
void in_pieces(const std::array<BFloat16*, rows>& to, std::int64_t n, F&& fn) {
  constexpr std::int64_t piece = 256;  // with its inputs it stays in the first-level cache
  alignas(64) float memory[rows][piece];
  std::array<float*, rows> outs;
  for (std::size_t r = 0; r < rows; ++r) {
    outs[r] = memory[r];
  }
  for (std::int64_t at = 0; at < n; at += piece) {
    const std::int64_t count = std::min(piece, n - at);
    fn(outs, at, count);
    for (std::size_t r = 0; r < rows; ++r) {
      round_row(to[r] + at, memory[r], count);
    }
  }
}

}  // namespace orthant
