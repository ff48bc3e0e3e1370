// The built-in fp32 matrix product, for builds without oneDNN: packed panels and a register tile, after Goto and
// van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 34(3), 2008.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/device/cpu/parallel.h"
#include "core/device/cpu/scratch.h"

namespace orthant::plain {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64, tile_rows = 12;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32, tile_rows = 6;
#else
inline constexpr int vector_bytes = 16, tile_rows = 6;
#endif
inline constexpr int lanes = vector_bytes / 4, tile_columns = 2 * lanes;
// Of the blocks packed at a time: a B panel (block_k x tile_columns) stays in L1, an A block in L2, a B block in L3.
inline constexpr std::int64_t block_k = 256, block_m = 96, block_n = 1024;
static_assert(block_m % tile_rows == 0 && block_n % tile_columns == 0);

using Vector = float __attribute__((vector_size(vector_bytes)));

// Element (i, j) of op(X) for a row-major X.
inline float element(bool transposed, const float* x, std::int64_t ld, std::int64_t i, std::int64_t j) {
  return transposed ? x[j * ld + i] : x[i * ld + j];
}

// `rows` x `depth` of op(A) from (i0, p0), as panels of tile_rows rows stored depth-major, padded with zeros.
inline void pack_a(float* to, bool ta, const float* a, std::int64_t lda, std::int64_t i0, std::int64_t p0,
                   std::int64_t rows, std::int64_t depth) {
  for (std::int64_t i = 0; i < rows; i += tile_rows) {
    for (std::int64_t p = 0; p < depth; ++p) {
      for (std::int64_t r = 0; r < tile_rows; ++r) {
        *to++ = i + r < rows ? element(ta, a, lda, i0 + i + r, p0 + p) : 0.0f;
      }
    }
  }
}

// `depth` x `columns` of op(B) from (p0, j0), as panels of tile_columns columns stored depth-major, zero-padded.
inline void pack_b(float* to, bool tb, const float* b, std::int64_t ldb, std::int64_t p0, std::int64_t j0,
                   std::int64_t depth, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; j += tile_columns) {
    for (std::int64_t p = 0; p < depth; ++p) {
      for (std::int64_t c = 0; c < tile_columns; ++c) {
        *to++ = j + c < columns ? element(tb, b, ldb, p0 + p, j0 + j + c) : 0.0f;
      }
    }
  }
}

// One tile of C: (+)= panel of A times panel of B. rows, columns: how much of the tile C has. keep: add to C.
inline void multiply_tile(const float* a, const float* b, std::int64_t depth, float* c, std::int64_t ldc,
                          std::int64_t rows, std::int64_t columns, bool keep) {
  Vector sum[tile_rows][2] = {};
  for (std::int64_t p = 0; p < depth; ++p) {
    Vector b0, b1;
    std::memcpy(&b0, b + p * tile_columns, sizeof b0);
    std::memcpy(&b1, b + p * tile_columns + lanes, sizeof b1);
#pragma GCC unroll 12
    for (int r = 0; r < tile_rows; ++r) {
      const Vector x = a[p * tile_rows + r] - Vector{};
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
  float tile[tile_rows][tile_columns];
  std::memcpy(tile, sum, sizeof tile);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = c + r * ldc;
    for (std::int64_t j = 0; j < columns; ++j) {
      row[j] = keep ? row[j] + tile[r][j] : tile[r][j];
    }
  }
}

// As cpu_gemm (gemm.h), with `threads` OpenMP threads.
inline void gemm(int threads, bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                 std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  // Few rows: threads take columns instead. An element's sum stays.
  if (const std::int64_t panels = n / tile_columns; threads > 1 && m <= block_m && panels > 1 && !omp_in_parallel()) {
    parallel_for(threads, panels, 1, [&](std::int64_t first, std::int64_t last) {
      const std::int64_t j = first * tile_columns, columns = (last == panels ? n : last * tile_columns) - j;
      gemm(1, ta, tb, m, columns, k, a, lda, tb ? b + j * ldb : b + j, ldb, beta, c + j, ldc);
    });
    return;
  }
  if (k == 0 || (beta != 0.0f && beta != 1.0f)) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        c[i * ldc + j] = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      }
    }
  }
  if (m == 0 || n == 0 || k == 0) {
    return;
  }
  const auto padded = [](std::int64_t size, std::int64_t step) { return (size + step - 1) / step * step; };
  const std::int64_t depth_max = std::min(k, block_k);
  const std::int64_t panel_a = padded(std::min(m, block_m), tile_rows) * depth_max;
  const std::int64_t row_blocks = (m + block_m - 1) / block_m;
  const std::int64_t parts = omp_in_parallel() ? 1 : std::min<std::int64_t>(threads, row_blocks);
  ScratchBuffer memory;
  auto* packed_b = static_cast<float*>(
      memory.get(sizeof(float) *
                 static_cast<std::size_t>(padded(std::min(n, block_n), tile_columns) * depth_max + parts * panel_a)));
  float* packed_a = packed_b + padded(std::min(n, block_n), tile_columns) * depth_max;
  for (std::int64_t j0 = 0; j0 < n; j0 += block_n) {
    const std::int64_t columns = std::min(block_n, n - j0);
    for (std::int64_t p0 = 0; p0 < k; p0 += block_k) {
      const std::int64_t depth = std::min(block_k, k - p0);
      pack_b(packed_b, tb, b, ldb, p0, j0, depth, columns);
      parallel_for(static_cast<int>(parts), row_blocks, 1, [&](std::int64_t first, std::int64_t last) {
        float* mine = packed_a + (parts > 1 ? omp_get_thread_num() : 0) * panel_a;
        for (std::int64_t block = first; block < last; ++block) {
          const std::int64_t i0 = block * block_m, rows = std::min(block_m, m - i0);
          pack_a(mine, ta, a, lda, i0, p0, rows, depth);
          for (std::int64_t j = 0; j < columns; j += tile_columns) {
            for (std::int64_t i = 0; i < rows; i += tile_rows) {
              multiply_tile(mine + i * depth, packed_b + j * depth, depth, c + (i0 + i) * ldc + j0 + j, ldc,
                            std::min<std::int64_t>(tile_rows, rows - i),
                            std::min<std::int64_t>(tile_columns, columns - j), p0 > 0 || beta != 0.0f);
            }
          }
        }
      });
    }
  }
}

}  // namespace orthant::plain
