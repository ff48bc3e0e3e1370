// What panels of packed operands are made of: items of four bytes, held as floats. An item of f32 is one step of k. An
// item of bf16 is two steps where the processor multiplies pairs of bf16 (AVX-512 BF16: sums in f32, twice the rate of
// f32), elsewhere one step, converted to f32.
//
// A pair's product adds a[2p] b[2p] and a[2p+1] b[2p+1] to an f32 sum, in an order and with roundings that the
// processor fixes, at most one rounding to nearest for each product. Unlike an FMA it takes denormal operands for zero,
// and sums below 2^-126 become zero. An odd last step is paired with zeros.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "core/device/cpu/bf16.h"

namespace orthant::panels {

// The register tile: as many rows and columns of C as the processor's registers hold beside two vectors of B.
#if defined(__AVX512F__)
inline constexpr std::int64_t lanes = 16, tile_rows = 12;
#elif defined(__AVX__)
inline constexpr std::int64_t lanes = 8, tile_rows = 6;
#else
inline constexpr std::int64_t lanes = 4, tile_rows = 6;
#endif
inline constexpr std::int64_t tile_columns = 2 * lanes;

using Vector [[gnu::vector_size(lanes * 4)]] = float;
using Eight [[gnu::vector_size(32)]] = float;

// Through unaligned vector types, so that a register tile never has its address taken.
template <class V>
[[gnu::always_inline]] inline void load(V& v, const float* from) {
  using Unaligned [[gnu::vector_size(sizeof(V)), gnu::aligned(4), gnu::may_alias]] = float;
  v = *reinterpret_cast<const Unaligned*>(from);
}
template <class V>
[[gnu::always_inline]] inline void store(float* to, const V& v) {
  using Unaligned [[gnu::vector_size(sizeof(V)), gnu::aligned(4), gnu::may_alias]] = float;
  *reinterpret_cast<Unaligned*>(to) = v;
}

// To memory, not to the caches. REQUIRES: `to` is aligned to a vector. A fence orders it with what follows.
[[gnu::always_inline]] inline void store_past_caches(float* to, const Vector& v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, reinterpret_cast<__m512>(v));
#elif defined(__AVX__)
  _mm256_stream_ps(to, reinterpret_cast<__m256>(v));
#else
  store(to, v);
#endif
}
inline void fence_past_caches() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

// bf16 -> f32
template <class Half, class Wide, class V>
[[gnu::always_inline]] inline void convert(V& v, const BFloat16* from) {
  Half bits;
  std::memcpy(&bits, from, sizeof bits);
  const Wide wide = __builtin_convertvector(bits, Wide) << 16;
  std::memcpy(&v, &wide, sizeof v);
}
[[gnu::always_inline]] inline void load_eight(Eight& v, const float* from) {
  load(v, from);
}
[[gnu::always_inline]] inline void load_eight(Eight& v, const BFloat16* from) {
  using Half [[gnu::vector_size(16)]] = std::uint16_t;
  using Wide [[gnu::vector_size(32)]] = std::uint32_t;
  convert<Half, Wide>(v, from);
}
[[gnu::always_inline]] inline void load_vector(Vector& v, const float* from) {
  load(v, from);
}
[[gnu::always_inline]] inline void load_vector(Vector& v, const BFloat16* from) {
  using Half [[gnu::vector_size(lanes * 2)]] = std::uint16_t;
  using Wide [[gnu::vector_size(lanes * 4)]] = std::uint32_t;
  convert<Half, Wide>(v, from);
}

// Two neighbouring vectors of sums rounded to bf16.
[[gnu::always_inline]] inline void store_rounded(BFloat16* to, const Vector& v0, const Vector& v1) {
  for (std::int64_t i = 0; i < lanes; ++i) {
    to[i] = to_bf16(v0[i]);
    to[lanes + i] = to_bf16(v1[i]);
  }
}

// Items of one step, from operands of type T.
template <class T>
struct Items {
  static constexpr std::int64_t steps = 1;

  // Rounds tile_columns sums of products.
  [[gnu::always_inline]] static void round(BFloat16* to, const Vector& v0, const Vector& v1) {
    store_rounded(to, v0, v1);
  }

  // The item of `count` steps (1 to `steps`), `apart` elements from one another.
  static float item(const T* from, std::int64_t /*apart*/, std::int64_t /*count*/) { return to_float(*from); }
  // Eight items of one row (or column) of the operand whose k is contiguous.
  [[gnu::always_inline]] static void eight_along_k(Eight& v, const T* from) { load_eight(v, from); }
  // The items of eight neighbours; second: their next step.
  [[gnu::always_inline]] static void eight_neighbours(Eight& v, const T* first, const T* /*second*/) {
    load_eight(v, first);
  }
  // The items of tile_columns neighbours.
  [[gnu::always_inline]] static void neighbours(Vector& v0, Vector& v1, const T* first, const T* /*second*/) {
    load_vector(v0, first);
    load_vector(v1, first + lanes);
  }
  [[gnu::always_inline]] static void multiply_add(Vector& sum, float a, const Vector& b) { sum += a * b; }
};

#if defined(__AVX512BF16__)

// Items of two steps: the earlier one is the lower half.
template <>
struct Items<BFloat16> {
  static constexpr std::int64_t steps = 2;

  // The instruction takes denormal numbers for zero: sums of pairs have none.
  [[gnu::always_inline]] static void round(BFloat16* to, const Vector& v0, const Vector& v1) {
    const auto rounded = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(v1), reinterpret_cast<__m512>(v0));
    std::memcpy(to, &rounded, sizeof rounded);
  }

  static float item(const BFloat16* from, std::int64_t apart, std::int64_t count) {
    const std::uint32_t second = count > 1 ? from[apart].bits : 0u;
    return std::bit_cast<float>(from[0].bits | second << 16);
  }
  [[gnu::always_inline]] static void eight_along_k(Eight& v, const BFloat16* from) { std::memcpy(&v, from, sizeof v); }
  [[gnu::always_inline]] static void eight_neighbours(Eight& v, const BFloat16* first, const BFloat16* second) {
    using Half [[gnu::vector_size(16)]] = std::uint16_t;
    Half a, b;
    std::memcpy(&a, first, sizeof a);
    std::memcpy(&b, second, sizeof b);
    const auto pairs = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    std::memcpy(&v, &pairs, sizeof v);
  }
  [[gnu::always_inline]] static void neighbours(Vector& v0, Vector& v1, const BFloat16* first, const BFloat16* second) {
    using Row [[gnu::vector_size(64)]] = std::uint16_t;
    Row a, b;
    std::memcpy(&a, first, sizeof a);
    std::memcpy(&b, second, sizeof b);
    v0 = reinterpret_cast<Vector>(__builtin_shufflevector(  //
        a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14,
        46, 15, 47));
    v1 = reinterpret_cast<Vector>(__builtin_shufflevector(  //
        a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60,
        29, 61, 30, 62, 31, 63));
  }
  [[gnu::always_inline]] static void multiply_add(Vector& sum, float a, const Vector& b) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_ps(a)), reinterpret_cast<__m512bh>(b));
  }
};

#endif

// Items of k_count steps.
template <class T>
constexpr std::int64_t items_of(std::int64_t k_count) {
  return (k_count + Items<T>::steps - 1) / Items<T>::steps;
}

}  // namespace orthant::panels
