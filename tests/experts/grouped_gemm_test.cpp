// grouped_gemm and grouped_gemm_tn against plain fp64 sums: every layout, dtype, awkward sizes, skewed routing.
#include <gtest/gtest.h>

#include "tests/support/op_harness.h"

namespace orthant::test {
namespace {

struct Case {
  std::vector<std::int64_t> offset;
  std::int64_t k, n;
};

// Sizes around the kernel's tiles and blocks, with experts that have no row, one row, and everything (which two threads
// cut more finely than one: the harness compares their bits).
std::vector<Case> cases() {
  return {{{0, 0, 1, 8, 8}, 5, 3}, {{0, 13, 13, 40}, 64, 32}, {{0, 0, 0, 270}, 33, 261},
          {{0, 64, 131}, 300, 17}, {{0, 0, 0}, 8, 8},         {{0, 7, 12, 24, 25}, 513, 40},
          {{0, 1}, 1, 1},          {{0, 5, 9}, 0, 4},         {{0, 7, 7, 40}, 300, 130}};
}

std::int64_t experts_of(const Case& x) {
  return static_cast<std::int64_t>(x.offset.size()) - 1;
}

double tolerance(DType result) {
  return result == DType::f32 ? 3e-6 : 4e-3;
}

TEST(GroupedGemm, IsOneProductAnExpert) {
  for (const Case& x : cases()) {
    for (const DType in : {DType::f32, DType::bf16}) {
      for (const DType out : {DType::f32, DType::bf16}) {
        if (in == DType::f32 && out == DType::bf16) {
          continue;  // nobody asks for it
        }
        for (const bool transpose : {false, true}) {
          for (const float beta : {0.0f, 1.0f}) {
            on_every_device([&](OpContext& c) {
              const std::int64_t e_count = experts_of(x), rows = x.offset.back(), k = x.k, n = x.n;
              const Input a = c.normal(in, {rows, k}, 1.0);
              const Input b = c.normal(in, transpose ? Shape{e_count, n, k} : Shape{e_count, k, n}, 1.0);
              const Input old = c.normal(out, {rows, n}, 1.0);
              Values want;
              for (std::int64_t e = 0; e < e_count; ++e) {
                for (std::int64_t r = x.offset[static_cast<std::size_t>(e)];
                     r < x.offset[static_cast<std::size_t>(e) + 1]; ++r) {
                  for (std::int64_t j = 0; j < n; ++j) {
                    double sum = beta == 0 ? 0 : old.values[static_cast<std::size_t>(r * n + j)];
                    for (std::int64_t i = 0; i < k; ++i) {
                      const std::int64_t at = transpose ? (e * n + j) * k + i : (e * k + i) * n + j;
                      sum += a.values[static_cast<std::size_t>(r * k + i)] * b.values[static_cast<std::size_t>(at)];
                    }
                    want.push_back(sum);
                  }
                }
              }
              const Tensor y = beta == 0 ? c.poisoned(out, {rows, n}) : old.tensor;
              c.stream().grouped_gemm(y, a.tensor, b.tensor, x.offset, {.transpose_b = transpose, .beta = beta});
              c.expect("y", y, want, tolerance(out));
            });
          }
        }
      }
    }
  }
}

TEST(GroupedGemmTn, IsOneProductAnExpertAndZeroWithoutRows) {
  for (const Case& x : cases()) {
    for (const DType in : {DType::f32, DType::bf16}) {
      for (const float beta : {0.0f, 1.0f}) {
        on_every_device([&](OpContext& c) {
          const std::int64_t e_count = experts_of(x), rows = x.offset.back(), m = x.k, n = x.n;
          const Input a = c.normal(in, {rows, m}, 1.0), b = c.normal(in, {rows, n}, 1.0);
          const Input old = c.normal(DType::f32, {e_count, m, n}, 1.0);
          Values want;
          for (std::int64_t e = 0; e < e_count; ++e) {
            for (std::int64_t i = 0; i < m; ++i) {
              for (std::int64_t j = 0; j < n; ++j) {
                double sum = beta == 0 ? 0 : old.values[static_cast<std::size_t>((e * m + i) * n + j)];
                for (std::int64_t r = x.offset[static_cast<std::size_t>(e)];
                     r < x.offset[static_cast<std::size_t>(e) + 1]; ++r) {
                  sum += a.values[static_cast<std::size_t>(r * m + i)] * b.values[static_cast<std::size_t>(r * n + j)];
                }
                want.push_back(sum);
              }
            }
          }
          const Tensor w = beta == 0 ? c.poisoned(DType::f32, {e_count, m, n}) : old.tensor;
          c.stream().grouped_gemm_tn(w, a.tensor, b.tensor, x.offset, beta);
          c.expect("w", w, want, 3e-6);
        });
      }
    }
  }
}

// A row's result does not depend on which or how many rows stand beside it, nor on how experts are numbered.
TEST(GroupedGemm, RowsDoNotDependOnTheirNeighbours) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool transpose : {false, true}) {
      for (const std::int64_t count : {1, 5, 11, 140}) {
        on_every_device([&](OpContext& c) {
          const std::int64_t k = 300, n = 45;
          const Input a = c.normal(dtype, {300, k}, 1.0),
                      b = c.normal(dtype, transpose ? Shape{2, n, k} : Shape{2, k, n}, 1.0);
          const Tensor all = c.poisoned(dtype, {300, n}), part = c.poisoned(dtype, {count, n});
          const std::vector<std::int64_t> offset = {0, 3, 300}, alone = {0, 0, count};
          c.stream().grouped_gemm(all, a.tensor, b.tensor, offset, {.transpose_b = transpose});
          c.stream().grouped_gemm(part, a.tensor.rows(150, count), b.tensor, alone, {.transpose_b = transpose});
          EXPECT_EQ(c.values_of(all.rows(150, count)), c.values_of(part));
        });
      }
    }
  }
}

TEST(GroupedGemm, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const Tensor a = c.normal(DType::f32, {6, 4}, 1.0).tensor, b = c.normal(DType::f32, {2, 4, 3}, 1.0).tensor;
    const Tensor y = c.poisoned(DType::f32, {6, 3}), w = c.poisoned(DType::f32, {2, 4, 3});
    const std::vector<std::int64_t> good = {0, 2, 6}, short_list = {0, 6}, descending = {0, 7, 6}, too_few = {0, 2, 5};
    EXPECT_NO_THROW(c.stream().grouped_gemm(y, a, b, good, {}));
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, short_list, {}), Error);
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, descending, {}), Error);
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, too_few, {}), Error);
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, good, {.transpose_b = true}), Error);
    EXPECT_THROW(c.stream().grouped_gemm_tn(w, y, a, good, 0), Error);
  });
}

}  // namespace
}  // namespace orthant::test
