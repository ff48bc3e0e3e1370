// Operands of a product copied into panels for a register tile: converted to f32 and transposed on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "experts/cpu/block_gemm.h"

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
inline constexpr std::size_t slack = 16;  // floats that packing may write past the end

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

[[gnu::always_inline]] inline void load_eight(Eight& v, const float* from) {
  load(v, from);
}
[[gnu::always_inline]] inline void load_eight(Eight& v, const BFloat16* from) {
  using Half [[gnu::vector_size(16)]] = std::uint16_t;
  using Wide [[gnu::vector_size(32)]] = std::uint32_t;
  Half bits;
  std::memcpy(&bits, from, sizeof bits);
  const Wide wide = __builtin_convertvector(bits, Wide) << 16;
  std::memcpy(&v, &wide, sizeof v);
}

// v[i][j] <- v[j][i]
[[gnu::always_inline]] inline void transpose(Eight (&v)[8]) {
  Eight a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[2 * i + 1] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const Eight &low = a[4 * i + j], &high = a[4 * i + j + 2];
      b[4 * i + 2 * j] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      b[4 * i + 2 * j + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Eight steps of k of a panel whose k is contiguous: count rows of 8, as 8 rows of `width`, zero beyond count. Where
// the width is no multiple of 8 a store reaches into the next step, which is written after it.
template <std::int64_t width, class T>
[[gnu::always_inline]] inline void pack_eight(float* out, const T* from, std::int64_t stride, std::int64_t count) {
  constexpr std::int64_t groups = (width + 7) / 8;
  Eight v[groups][8];
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t i = 0; i < 8; ++i) {
      if (g * 8 + i < count) {
        load_eight(v[g][i], from + (g * 8 + i) * stride);
      } else {
        v[g][i] = Eight{};
      }
    }
    transpose(v[g]);
  }
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t g = 0; g < groups; ++g) {
      store(out + i * width + g * 8, v[g][i]);
    }
  }
}

// One panel of an operand whose k is contiguous.
template <std::int64_t width, class T>
void pack_transposed(float* out, const T* from, std::int64_t stride, std::int64_t count, std::int64_t k_count) {
  const std::int64_t whole = k_count / 8 * 8;
  if (count == width) {
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t k = 0; k < whole; k += 8) {
      for (std::int64_t i = 0; k % line == 0 && k + 4 * line < k_count && i < width; ++i) {
        __builtin_prefetch(from + i * stride + k + 4 * line);
      }
      pack_eight<width>(out + k * width, from + k, stride, width);
    }
  } else {
    for (std::int64_t k = 0; k < whole; k += 8) {
      pack_eight<width>(out + k * width, from + k, stride, count);
    }
  }
  for (std::int64_t k = whole; k < k_count; ++k) {
    for (std::int64_t i = 0; i < width; ++i) {
      out[k * width + i] = i < count ? to_float(from[i * stride + k]) : 0.0f;
    }
  }
}

// Panels of `width` of the first `count` rows (or columns) of x and k_count steps from k_begin on: panel p holds
// element (p * width + i, k_begin + k) at out[(p * k_count + k) * width + i], zero beyond count. May write `slack`
// floats past the end.
template <std::int64_t width, class T>
void pack(float* out, const Operand<T>& x, std::int64_t count, std::int64_t k_begin, std::int64_t k_count) {
  if (x.k_contiguous) {
    for (std::int64_t i = 0; i < count; i += width) {
      pack_transposed<width>(out + i * k_count, x.data + i * x.stride + k_begin, x.stride, std::min(width, count - i),
                             k_count);
    }
    return;
  }
  // Memory is read in its order, across the panels; asked for some rows ahead, as a block's rows are too short for the
  // processor to fetch ahead by itself.
  constexpr std::int64_t ahead = 4, line = 64 / static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t wide = (width + 7) / 8 * 8;
  const std::int64_t whole = count / width * width;
  for (std::int64_t k = 0; k < k_count; ++k) {
    const T* const from = x.data + (k_begin + k) * x.stride;
    float* const to = out + k * width;
    for (std::int64_t i = 0; k + ahead < k_count && i < count; i += line) {
      __builtin_prefetch(from + ahead * x.stride + i);
    }
    std::int64_t i = 0;
    // Whole vectors where the next step's row, written later, takes what is too much.
    for (; k + 1 < k_count && i + wide <= count && i < whole; i += width) {
      for (std::int64_t j = 0; j < wide; j += 8) {
        Eight v;
        load_eight(v, from + i + j);
        store(to + i * k_count + j, v);
      }
    }
    for (; i < whole; i += width) {
      for (std::int64_t j = 0; j < width; ++j) {
        to[i * k_count + j] = to_float(from[i + j]);
      }
    }
    for (std::int64_t j = 0; whole < count && j < width; ++j) {
      to[whole * k_count + j] = whole + j < count ? to_float(from[whole + j]) : 0.0f;
    }
  }
}

}  // namespace orthant::panels
