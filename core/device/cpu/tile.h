// Products of small fp32 tiles that lie in cache, for attention: no packing, operands are used where they lie.
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
// Tiles are padded to whole register blocks: `row_step` rows by `column_step` columns.
inline constexpr std::int64_t row_step = 4, column_step = 2 * lanes;

using Vector = float __attribute__((vector_size(vector_bytes)));

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

// One number from a vector, by halves.
template <class F>
float folded(const Vector& x, F&& fn) {
  float part[lanes];
  std::memcpy(part, &x, sizeof part);
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) {
      part[i] = fn(part[i], part[i + half]);
    }
  }
  return part[0];
}

// The sum of x[0, n), and the greatest of them and `least`; NaN counts in the first alone. n is a multiple of `lanes`.
inline float sum_of(const float* x, std::int64_t n) {
  Vector sum{};
  for (std::int64_t i = 0; i < n; i += lanes) {
    Vector v;
    std::memcpy(&v, x + i, sizeof v);
    sum += v;
  }
  return folded(sum, [](float a, float b) { return a + b; });
}
inline float greatest(const float* x, std::int64_t n, float least) {
  Vector top = least - Vector{};
  for (std::int64_t i = 0; i < n; i += lanes) {
    Vector v;
    std::memcpy(&v, x + i, sizeof v);
    top = v > top ? v : top;
  }
  return folded(top, [](float a, float b) { return a > b ? a : b; });
}

// C [m, n] (+)= A [m, k] B [k, n]. Element (i, p) of A is a[i * row + p * depth], so that A may be used transposed;
// B and C are row-major. m and n are rounded up to whole register blocks: what lies there must be readable (A, B)
// and writable (C). Never inlined: in a large function its inner loop would lack registers.
[[gnu::noinline]] inline void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t row,
                                       std::int64_t depth, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                       bool accumulate) {
  for (std::int64_t i = 0; i < m; i += row_step) {
    for (std::int64_t j = 0; j < n; j += column_step) {
      Vector sum[row_step][2];
      float* to = c + i * ldc + j;
      for (int r = 0; r < row_step; ++r) {
        if (accumulate) {
          std::memcpy(sum[r], to + r * ldc, sizeof sum[r]);
        } else {
          sum[r][0] = sum[r][1] = Vector{};
        }
      }
      const float *x = a + i * row, *y = b + j;
      for (std::int64_t p = 0; p < k; ++p, x += depth, y += ldb) {
        Vector b0, b1;
        std::memcpy(&b0, y, sizeof b0);
        std::memcpy(&b1, y + lanes, sizeof b1);
        keep_in_register(b0);
        keep_in_register(b1);
#pragma GCC unroll 4
        for (int r = 0; r < row_step; ++r) {
          const Vector broadcast = x[r * row] - Vector{};
          sum[r][0] += broadcast * b0;
          sum[r][1] += broadcast * b1;
        }
      }
      for (int r = 0; r < row_step; ++r) {
        std::memcpy(to + r * ldc, sum[r], sizeof sum[r]);
      }
    }
  }
}

}  // namespace orthant::tile
