// Operands of a product copied into panels for a register tile: made items of (panel_items.h) and transposed on the
// way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "experts/cpu/block_gemm.h"
#include "experts/cpu/panel_items.h"

namespace orthant::panels {

inline constexpr std::size_t slack = 16;  // floats that packing may write past the end

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

// Eight items along k of `count` rows, 1 to 8, transposed; zero beyond count.
template <class T>
[[gnu::always_inline]] inline void load_transposed(Eight (&v)[8], const T* from, std::int64_t stride,
                                                   std::int64_t count) {
  for (std::int64_t i = 0; i < 8; ++i) {
    if (i < count) {
      Items<T>::eight_along_k(v[i], from + i * stride);
    } else {
      v[i] = Eight{};
    }
  }
  transpose(v);
}

// Eight items along k of a panel whose k is contiguous: count rows of 8, as 8 rows of `width`, zero beyond count. Where
// the width is no multiple of 8 a store reaches into the next item's row, which is written after it.
template <std::int64_t width, class T>
[[gnu::always_inline]] inline void pack_eight(float* out, const T* from, std::int64_t stride, std::int64_t count) {
  constexpr std::int64_t groups = (width + 7) / 8;
  if constexpr (width % 8 == 0) {
    for (std::int64_t g = 0; g < groups; ++g) {
      Eight v[8];
      load_transposed(v, from + g * 8 * stride, stride, count - g * 8);
      for (std::int64_t i = 0; i < 8; ++i) {
        store(out + i * width + g * 8, v[i]);
      }
    }
  } else {
    Eight v[groups][8];
    for (std::int64_t g = 0; g < groups; ++g) {
      load_transposed(v[g], from + g * 8 * stride, stride, count - g * 8);
    }
    for (std::int64_t i = 0; i < 8; ++i) {
      for (std::int64_t g = 0; g < groups; ++g) {
        store(out + i * width + g * 8, v[g][i]);
      }
    }
  }
}

// One panel of an operand whose k is contiguous.
template <std::int64_t width, class T>
void pack_transposed(float* out, const T* from, std::int64_t stride, std::int64_t count, std::int64_t k_count) {
  constexpr std::int64_t steps = Items<T>::steps, step = 8 * steps;
  const std::int64_t whole = k_count / step * step;
  if (count == width) {
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t k = 0; k < whole; k += step) {
      for (std::int64_t i = 0; k % line == 0 && k + 4 * line < k_count && i < width; ++i) {
        __builtin_prefetch(from + i * stride + k + 4 * line);
      }
      pack_eight<width>(out + k / steps * width, from + k, stride, width);
    }
  } else {
    for (std::int64_t k = 0; k < whole; k += step) {
      pack_eight<width>(out + k / steps * width, from + k, stride, count);
    }
  }
  for (std::int64_t k = whole; k < k_count; k += steps) {
    for (std::int64_t i = 0; i < width; ++i) {
      out[k / steps * width + i] = i < count ? Items<T>::item(from + i * stride + k, 1, k_count - k) : 0.0f;
    }
  }
}

// Panels of `width` of the first `count` rows (or columns) of x and k_count steps from k_begin on: with `items` of
// them, panel p holds the item of (p * width + i) and steps from k_begin + q * steps on at out[(p * items + q) * width
// + i], zero beyond count. May write `slack` floats past the end.
template <std::int64_t width, class T>
void pack(float* out, const Operand<T>& x, std::int64_t count, std::int64_t k_begin, std::int64_t k_count) {
  constexpr std::int64_t steps = Items<T>::steps;
  const std::int64_t items = items_of<T>(k_count);
  if (x.k_contiguous) {
    for (std::int64_t i = 0; i < count; i += width) {
      pack_transposed<width>(out + i * items, x.data + i * x.stride + k_begin, x.stride, std::min(width, count - i),
                             k_count);
    }
    return;
  }
  // A few rows of memory at a time, across the panels: they stay in the first-level cache until the last panel has read
  // them, and each panel is written in pieces, as panels lie at distances that share the cache's sets. Asked for some
  // rows ahead, as a block's rows are too short for the processor to fetch ahead by itself.
  constexpr std::int64_t ahead = 8, line = 64 / static_cast<std::int64_t>(sizeof(T)), piece = 8 / steps;
  constexpr std::int64_t wide = (width + 7) / 8 * 8;
  for (std::int64_t q0 = 0; q0 < items; q0 += piece) {
    const std::int64_t end = std::min(items, q0 + piece);
    for (std::int64_t s = q0 * steps + ahead; s < std::min(end * steps + ahead, k_count); ++s) {
      for (std::int64_t i = 0; i < count; i += line) {
        __builtin_prefetch(x.data + (k_begin + s) * x.stride + i);
      }
    }
    for (std::int64_t i = 0; i < count; i += width) {
      for (std::int64_t q = q0; q < end; ++q) {
        const std::int64_t left = k_count - q * steps;
        const T* const from = x.data + (k_begin + q * steps) * x.stride + i;
        float* const to = out + i * items + q * width;
        // Whole vectors where every step is there, and where the next item's row, written later, takes what is too
        // much.
        if (left >= steps && (wide == width || q + 1 < items) && i + wide <= count) {
          for (std::int64_t j = 0; j < wide; j += 8) {
            Eight v;
            Items<T>::eight_neighbours(v, from + j, from + j + x.stride);
            store(to + j, v);
          }
        } else {
          for (std::int64_t j = 0; j < width; ++j) {
            to[j] = i + j < count ? Items<T>::item(from + j, x.stride, left) : 0.0f;
          }
        }
      }
    }
  }
}

}  // namespace orthant::panels
