// Products of small tiles that lie in cache, for attention: no packing, operands are used where they lie.
//
// Operands are made of items: four bytes held as a float, of one step of the reduction or of several. `Items` says how
// many, and how a vector of items is multiplied (attention_items.h). Sums are fp32.
#pragma once

#include <cstdint>
#include <cstring>

namespace orthant::tile {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif
inline constexpr std::int64_t lanes = vector_bytes / 4;
// Tiles are padded to whole register blocks: `row_step` rows by `lanes` columns.
inline constexpr std::int64_t row_step = 4;

using Vector = float __attribute__((vector_size(vector_bytes)));
using Lanes = std::int32_t __attribute__((vector_size(vector_bytes)));

constexpr std::int64_t padded(std::int64_t size, std::int64_t step) {
  return (size + step - 1) / step * step;
}

// GCC would otherwise load the vector again in each of its uses, which makes the loop wait for loads.
inline void keep_in_register(Vector& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#else
  static_cast<void>(x);
#endif
}

// Lane i of what `half` lanes on is held, going round.
template <std::int64_t half>
Vector turned(const Vector& x) {
  Lanes from;
  for (std::int64_t i = 0; i < lanes; ++i) {
    from[i] = static_cast<std::int32_t>((i + half) % lanes);
  }
  return __builtin_shuffle(x, from);
}

// In each lane, fn of all lanes of x, by halves; fn is commutative.
template <std::int64_t half = lanes / 2, class F>
[[gnu::always_inline]] inline Vector folded(Vector x, F&& fn) {
  if constexpr (half > 0) {
    return folded<half / 2>(fn(x, turned<half>(x)), fn);
  } else {
    return x;
  }
}

inline Vector load(const float* x) {
  Vector v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
inline void store(float* to, const Vector& v) {
  std::memcpy(to, &v, sizeof v);
}
// The numbers of the lanes.
inline Lanes counted() {
  Lanes lane;
  for (std::int32_t i = 0; i < lanes; ++i) {
    lane[i] = i;
  }
  return lane;
}
// Sets lanes [begin, end) of the vector at `to`.
inline void set_lanes(float* to, std::int64_t begin, std::int64_t end, float x) {
  const Lanes lane = counted(), first = static_cast<std::int32_t>(begin) - Lanes{},
              last = static_cast<std::int32_t>(end) - Lanes{};
  store(to, (lane >= first) & (lane < last) ? x - Vector{} : load(to));
}
// In each lane, the sum of all lanes, or the greatest of them.
[[gnu::always_inline]] inline Vector sum_of(const Vector& x) {
  return folded(x, [](const Vector& a, const Vector& b) { return a + b; });
}
[[gnu::always_inline]] inline Vector greatest_of(const Vector& x) {
  return folded(x, [](const Vector& a, const Vector& b) { return a > b ? a : b; });
}

// to [columns, lanes] is the transpose of from [lanes, lanes]; at most `lanes` columns. A row is `ld_to` or `ld_from`
// from the next. Each round interleaves the first half of the rows with the second: after log2(lanes) of them, row i
// holds column i.
inline void transpose(float* to, std::int64_t ld_to, const float* from, std::int64_t ld_from, std::int64_t columns) {
  Vector rows[lanes], next[lanes];
  Lanes low, high;
  for (std::int32_t i = 0; i < lanes; ++i) {
    rows[i] = load(from + i * ld_from);
    low[i] = i / 2 + (i % 2 == 0 ? 0 : static_cast<std::int32_t>(lanes));
    high[i] = low[i] + static_cast<std::int32_t>(lanes / 2);
  }
#pragma GCC unroll 4
  for (std::int64_t round = 1; round < lanes; round *= 2) {
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < lanes / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + lanes / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + lanes / 2], high);
    }
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < lanes; ++i) {
      rows[i] = next[i];
    }
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    store(to + i * ld_to, rows[i]);
  }
}

// row_step rows and `vectors` vectors of columns of multiply.
template <class Items, int vectors>
inline void multiply_block(std::int64_t k, const float* a, std::int64_t row, std::int64_t depth, const float* b,
                           std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  Vector sum[row_step][vectors];
#pragma GCC unroll 4
  for (int r = 0; r < row_step; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = accumulate ? load(c + r * ldc + v * lanes) : Vector{};
    }
  }
  for (std::int64_t p = 0; p < k; ++p, a += depth, b += ldb) {
    Vector right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      right[v] = load(b + v * lanes);
      keep_in_register(right[v]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < row_step; ++r) {
      const Vector broadcast = a[r * row] - Vector{};
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        Items::multiply_add(sum[r][v], broadcast, right[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < row_step; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      store(c + r * ldc + v * lanes, sum[r][v]);
    }
  }
}

// C [m, n] (+)= A [m, k] B [k, n], k counted in items. Item (i, p) of A is a[i * row + p * depth], so that A may be
// used transposed; B and C are row-major. m is rounded up to row_step and n to `lanes`: what lies there must be
// readable (A, B) and writable (C). Never inlined: in a large function its inner loop would lack registers.
template <class Items>
[[gnu::noinline]] void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t row,
                                std::int64_t depth, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                bool accumulate) {
  for (std::int64_t i = 0; i < m; i += row_step, a += row_step * row, c += row_step * ldc) {
    std::int64_t j = 0;
    for (; j + lanes < n; j += 2 * lanes) {
      multiply_block<Items, 2>(k, a, row, depth, b + j, ldb, c + j, ldc, accumulate);
    }
    if (j < n) {
      multiply_block<Items, 1>(k, a, row, depth, b + j, ldb, c + j, ldc, accumulate);
    }
  }
}

}  // namespace orthant::tile
