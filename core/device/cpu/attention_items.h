// What the operands of attention's products are made of: items of four bytes, held as floats. An item of f32 is one
// step of the reduction. An item of bf16 is two steps where the processor multiplies pairs of bf16 (AVX-512 BF16: sums
// in fp32, twice the rate of fp32), elsewhere one step, converted to fp32.
//
// The steps of a sum over channels are the channels of a row; those of a sum over keys, or over queries, are rows. Both
// are paired by place: 2p and 2p + 1. So a sum may meet a partner that it should not see: its weight is zero, and adds
// nothing as long as the partner is a finite number. An odd last step is paired with zeros.
//
// A pair's product takes denormal numbers for zero, sums too. Weights and gradients of scores, which are fp32 numbers,
// are rounded to bf16 (nearest, ties to even) to be multiplied in pairs.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/tile.h"

namespace orthant::attention_tiles {

// Of operands of type T. Rows may be read from numbers of another type that are T's numbers.
template <class T>
struct Items {
  static constexpr std::int64_t steps = 1;
  static constexpr std::int64_t of(std::int64_t count) { return count; }

  [[gnu::always_inline]] static void multiply_add(tile::Vector& sum, const tile::Vector& a, const tile::Vector& b) {
    sum += a * b;
  }
  // Of scores x: what e is raised to for their weights, scale x - from, not above 0 but for rounding. fp32 scores have
  // their scale already.
  [[gnu::always_inline]] static tile::Vector exponent(const tile::Vector& x, float /*scale*/, float from) {
    return x - from;
  }
  // Step `step` of an item.
  static void put(float* item, std::int64_t /*step*/, float x) { *item = x; }
  // The items of `count` steps of a row, times `scale`.
  template <class From>
  static void along_row(float* to, const From* from, std::int64_t count, float scale) {
#pragma omp simd
    for (std::int64_t e = 0; e < count; ++e) {
      to[e] = scale * to_float(from[e]);
    }
  }
};

#if defined(__AVX512BF16__)

// Two steps: the earlier one is the lower half. They are not scaled: a product of bf16 numbers would have to be
// rounded.
template <>
struct Items<BFloat16> {
  static constexpr std::int64_t steps = 2;
  static constexpr std::int64_t of(std::int64_t count) { return (count + 1) / 2; }

  [[gnu::always_inline]] static void multiply_add(tile::Vector& sum, const tile::Vector& a, const tile::Vector& b) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  [[gnu::always_inline]] static tile::Vector exponent(const tile::Vector& x, float scale, float from) {
    return scale * x - from;
  }
  static void put(float* item, std::int64_t step, float x) {
    const BFloat16 half = to_bf16(x);
    std::memcpy(reinterpret_cast<unsigned char*>(item) + step * 2, &half, sizeof half);
  }
  // Writes whole vectors, with zeros behind.
  static void along_row(float* to, const BFloat16* from, std::int64_t count, float /*scale*/) {
    constexpr std::int64_t most = 2 * tile::lanes;
    for (std::int64_t e = 0; e < count; e += most) {
      const auto some = static_cast<__mmask32>(count - e < most ? (1u << (count - e)) - 1u : ~0u);
      _mm512_storeu_si512(to + e / 2, _mm512_maskz_loadu_epi16(some, from + e));
    }
  }
  static void along_row(float* to, const float* from, std::int64_t count, float /*scale*/) {
    if (count % 2 == 1) {
      put(to + count / 2, 1, 0.0f);
    }
    for (std::int64_t e = 0; e < count; ++e) {
      put(to + e / 2, e % 2, from[e]);
    }
  }
  // The items of two rows, of which the second may be null for zeros.
  static void across_rows(float* to, const BFloat16* first, const BFloat16* second, std::int64_t count) {
    const BFloat16* const other = second == nullptr ? first : second;
    const std::uint32_t kept = second == nullptr ? 0u : 0xFFFFu;
#pragma omp simd
    for (std::int64_t e = 0; e < count; ++e) {
      to[e] = std::bit_cast<float>(first[e].bits | (other[e].bits & kept) << 16);
    }
  }

  // fp32 numbers rounded: `count` of a row, up to 2 * lanes - 1 more being read and written. `to` may be `from`.
  static void round_along_row(float* to, const float* from, std::int64_t count) {
    for (std::int64_t j = 0; j < count; j += 2 * tile::lanes) {
      const auto rounded = _mm512_cvtne2ps_pbh(load(from + j + tile::lanes), load(from + j));
      std::memcpy(to + j / 2, &rounded, sizeof rounded);
    }
  }
  // Of two rows, in place of the first; `count` is a multiple of lanes.
  static void round_across_rows(float* first, const float* second, std::int64_t count) {
    for (std::int64_t j = 0; j < count; j += tile::lanes) {
      using Halves [[gnu::vector_size(64)]] = std::int16_t;
      const auto rounded = reinterpret_cast<Halves>(_mm512_cvtne2ps_pbh(load(second + j), load(first + j)));
      const Halves items = __builtin_shufflevector(rounded, rounded, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                                   23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      std::memcpy(first + j, &items, sizeof items);
    }
  }

 private:
  static __m512 load(const float* from) {
    return _mm512_loadu_ps(from);
  }
};

#endif

}  // namespace orthant::attention_tiles
