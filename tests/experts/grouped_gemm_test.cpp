// grouped_gemm and grouped_gemm_tn against plain fp64 sums: every layout, dtype, awkward sizes, skewed routing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/op_harness.h"

namespace orthant::test::grouped_gemm_test {
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

Tensor offsets(OpContext& c, const std::vector<std::int64_t>& offset) {
  return c.input(DType::i32, {static_cast<std::int64_t>(offset.size())}, {offset.begin(), offset.end()}).tensor;
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
                for (std::int64_t r = x.offset[e]; r < x.offset[static_cast<std::size_t>(e) + 1]; ++r) {
                  for (std::int64_t j = 0; j < n; ++j) {
                    double sum = beta == 0 ? 0 : old.values[r * n + j];
                    for (std::int64_t i = 0; i < k; ++i) {
                      const std::int64_t at = transpose ? (e * n + j) * k + i : (e * k + i) * n + j;
                      sum += a.values[r * k + i] * b.values[at];
                    }
                    want.push_back(sum);
                  }
                }
              }
              const Tensor y = beta == 0 ? c.poisoned(out, {rows, n}) : old.tensor;
              c.stream().grouped_gemm(y, a.tensor, b.tensor, offsets(c, x.offset),
                                      {.transpose_b = transpose, .beta = beta});
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
                double sum = beta == 0 ? 0 : old.values[(e * m + i) * n + j];
                for (std::int64_t r = x.offset[e]; r < x.offset[static_cast<std::size_t>(e) + 1]; ++r) {
                  sum += a.values[r * m + i] * b.values[r * n + j];
                }
                want.push_back(sum);
              }
            }
          }
          const Tensor w = beta == 0 ? c.poisoned(DType::f32, {e_count, m, n}) : old.tensor;
          c.stream().grouped_gemm_tn(w, a.tensor, b.tensor, offsets(c, x.offset), beta);
          c.expect("w", w, want, 3e-6);
        });
      }
    }
  }
}

// Sizes that matrix units take (multiples of 8), of several tiles in every direction and of many slices of k.
TEST(GroupedGemm, OfManyTilesAndSlices) {
  const std::vector<std::int64_t> offset = {0, 0, 131, 139};
  const std::int64_t rows = 139, k = 328, n = 264;
  for (const DType out : {DType::f32, DType::bf16}) {
    for (const bool transpose : {false, true}) {
      Values want;
      on_every_device([&](OpContext& c) {
        const Input a = c.normal(DType::bf16, {rows, k}, 1.0);
        const Input b = c.normal(DType::bf16, transpose ? Shape{3, n, k} : Shape{3, k, n}, 1.0);
        for (std::int64_t r = 0; r < rows && std::ssize(want) < rows * n; ++r) {
          const std::int64_t e = r < 131 ? 1 : 2;
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t i = 0; i < k; ++i) {
              const std::int64_t at = transpose ? (e * n + j) * k + i : (e * k + i) * n + j;
              sum += a.values[r * k + i] * b.values[at];
            }
            want.push_back(sum);
          }
        }
        const Tensor y = c.poisoned(out, {rows, n});
        c.stream().grouped_gemm(y, a.tensor, b.tensor, offsets(c, offset), {.transpose_b = transpose});
        c.expect("y", y, want, tolerance(out));
      });
    }
  }
}

TEST(GroupedGemmTn, OfManyTilesAndSlices) {
  const std::vector<std::int64_t> offset = {0, 331, 331, 341};
  const std::int64_t rows = 341, m = 136, n = 264;
  Values want;
  on_every_device([&](OpContext& c) {
    const Input a = c.normal(DType::bf16, {rows, m}, 1.0), b = c.normal(DType::bf16, {rows, n}, 1.0);
    for (std::size_t e = 0; e < 3 && std::ssize(want) < 3 * m * n; ++e) {
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::int64_t r = offset[e]; r < offset[e + 1]; ++r) {
            sum += a.values[r * m + i] * b.values[r * n + j];
          }
          want.push_back(sum);
        }
      }
    }
    const Tensor w = c.poisoned(DType::f32, {3, m, n});
    c.stream().grouped_gemm_tn(w, a.tensor, b.tensor, offsets(c, offset), 0);
    c.expect("w", w, want, 3e-6);
  });
}

// More tiles than there are processors, of experts whose rows are about those of a tile or of two, or none.
const std::vector<std::int64_t> many_experts = {0, 0, 1, 128, 256, 385, 385, 640, 896, 1153, 1453, 1461};

TEST(GroupedGemm, OfManyExperts) {
  const std::int64_t experts = std::ssize(many_experts) - 1, rows = many_experts.back(), k = 72, n = 200;
  for (const bool transpose : {false, true}) {
    Values want;
    on_every_device([&](OpContext& c) {
      const Input a = c.normal(DType::bf16, {rows, k}, 1.0);
      const Input b = c.normal(DType::bf16, transpose ? Shape{experts, n, k} : Shape{experts, k, n}, 1.0);
      for (std::int64_t e = 0; e < experts && std::ssize(want) < rows * n; ++e) {
        for (std::int64_t r = many_experts[e]; r < many_experts[e + 1]; ++r) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t i = 0; i < k; ++i) {
              const std::int64_t at = transpose ? (e * n + j) * k + i : (e * k + i) * n + j;
              sum += a.values[r * k + i] * b.values[at];
            }
            want.push_back(sum);
          }
        }
      }
      const Tensor y = c.poisoned(DType::bf16, {rows, n});
      c.stream().grouped_gemm(y, a.tensor, b.tensor, offsets(c, many_experts), {.transpose_b = transpose});
      c.expect("y", y, want, tolerance(DType::bf16));
    });
  }
}

// Rows behind the last expert's are nobody's, whatever they hold.
TEST(GroupedGemmTn, OfManyExpertsAndRowsBehindTheLast) {
  const std::int64_t experts = std::ssize(many_experts) - 1, rows = many_experts.back(), behind = 40, m = 264, n = 72;
  for (const float beta : {0.0f, 1.0f}) {
    Values want;
    on_every_device([&](OpContext& c) {
      const auto with_nan = [&](std::int64_t columns) {
        Values x = c.normal(DType::bf16, {rows + behind, columns}, 1.0).values;
        std::fill(x.begin() + rows * columns, x.end(), std::nan(""));
        return c.input(DType::bf16, {rows + behind, columns}, x);
      };
      const Input a = with_nan(m), b = with_nan(n), old = c.normal(DType::f32, {experts, m, n}, 1.0);
      for (std::int64_t e = 0; e < experts && std::ssize(want) < experts * m * n; ++e) {
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = beta == 0 ? 0 : old.values[(e * m + i) * n + j];
            for (std::int64_t r = many_experts[e]; r < many_experts[e + 1]; ++r) {
              sum += a.values[r * m + i] * b.values[r * n + j];
            }
            want.push_back(sum);
          }
        }
      }
      const Tensor w = beta == 0 ? c.poisoned(DType::f32, {experts, m, n}) : old.tensor;
      c.stream().grouped_gemm_tn(w, a.tensor, b.tensor, offsets(c, many_experts), beta);
      c.expect("w", w, want, 3e-6);
    });
  }
}

// Weight gradients too large for the caches: beta 0 writes them past those, and must write what beta 1 adds to zeros.
// Of "cpu" alone, once: others have no such stores, and 34 MB take long there. Counts of rows below and above one depth
// of the kernel, tiles that are not full at both ends.
TEST(GroupedGemmTn, OfGradientsBeyondTheCaches) {
  const std::vector<std::int64_t> offset = {0, 0, 7, 60, 620};
  const std::int64_t experts = std::ssize(offset) - 1, rows = offset.back(), m = 1448, n = 1456;
  const auto pattern = [](std::int64_t count, std::int64_t step) {
    Values values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(static_cast<std::int64_t>(i) * step % 2003 - 1001) / 1024;
    }
    return values;
  };
  for (const int threads : {1, 2}) {
    const std::unique_ptr<Device> device = make_device("cpu", threads);
    OpContext c(*device);
    for (const DType in : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} threads, {}", threads, name_of(in)));
      const Input a = c.input(in, {rows, m}, pattern(rows * m, 7919)),
                  b = c.input(in, {rows, n}, pattern(rows * n, 31));
      const Tensor set = c.poisoned(DType::f32, {experts, m, n}), added = device->empty(DType::f32, {experts, m, n});
      c.stream().fill(added, 0);
      c.stream().grouped_gemm_tn(set, a.tensor, b.tensor, offsets(c, offset), 0);
      c.stream().grouped_gemm_tn(added, a.tensor, b.tensor, offsets(c, offset), 1);
      c.stream().synchronize();
      const auto one = device->host_view(set, Access::read), other = device->host_view(added, Access::read);
      ASSERT_EQ(one->bytes(), static_cast<std::size_t>(experts * m * n) * sizeof(float));
      EXPECT_EQ(std::memcmp(one->data(), other->data(), one->bytes()), 0);
      for (std::int64_t e = 0; e < experts; ++e) {
        for (std::int64_t sample = 0; sample < 300; ++sample) {  // from the last corner on
          const std::int64_t i = m - 1 - sample * 331 % m, j = n - 1 - sample * 577 % n;
          double sum = 0, magnitude = 0;
          for (std::int64_t r = offset[e]; r < offset[static_cast<std::size_t>(e) + 1]; ++r) {
            const double product = a.values[r * m + i] * b.values[r * n + j];
            sum += product;
            magnitude += std::abs(product);
          }
          float got = 0;
          std::memcpy(&got, one->data() + static_cast<std::size_t>((e * m + i) * n + j) * sizeof got, sizeof got);
          // Products of f32 are rounded, then sums are, each by 2^-24 of what there is at most.
          ASSERT_NEAR(got, sum, static_cast<double>(rows + 1) * std::ldexp(magnitude, -24))
              << "expert " << e << ", row " << i << ", column " << j;
        }
      }
    }
  }
}

// A row's result does not depend on which or how many rows stand beside it, nor on how experts are numbered.
TEST(GroupedGemm, RowsDoNotDependOnTheirNeighbours) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool transpose : {false, true}) {
      for (const std::int64_t count : {1, 5, 11, 40, 140}) {
        on_every_device([&](OpContext& c) {
          // Wide ones too: those have a way of their own for few rows.
          const std::int64_t k = count < 10 ? 601 : 300, n = count < 10 ? 150 : 45;
          const Input a = c.normal(dtype, {300, k}, 1.0),
                      b = c.normal(dtype, transpose ? Shape{2, n, k} : Shape{2, k, n}, 1.0);
          const Tensor all = c.poisoned(dtype, {300, n}), part = c.poisoned(dtype, {count, n});
          const Tensor offset = offsets(c, {0, 3, 300}), alone = offsets(c, {0, 0, count});
          c.stream().grouped_gemm(all, a.tensor, b.tensor, offset, {.transpose_b = transpose});
          c.stream().grouped_gemm(part, a.tensor.rows(150, count), b.tensor, alone, {.transpose_b = transpose});
          EXPECT_EQ(c.values_of(all.rows(150, count)), c.values_of(part));
        });
      }
    }
  }
}

// Products of bf16 are exact in f32, so an f32 sum of k of them in any order is off by at most k roundings of the sum
// of their magnitudes; numbers of all sizes, so that a product in the wrong place or lost shows.
TEST(GroupedGemm, SumsOfBf16AreWithinTheirRoundings) {
  for (const std::int64_t k : {1, 63, 256, 515, 1031}) {
    for (const std::int64_t rows : {1, 4, 29}) {
      for (const bool transpose : {false, true}) {
        const std::int64_t n = 100;
        on_every_device([&](OpContext& c) {
          const auto spread = [&](Shape shape) {
            std::vector<double> x = c.normal(DType::bf16, shape, 1.0).values;
            for (std::size_t i = 0; i < x.size(); ++i) {
              x[i] = std::ldexp(x[i], static_cast<int>(i % 41) - 20);
            }
            return c.input(DType::bf16, shape, x);
          };
          const Input a = spread({rows, k}), b = spread(transpose ? Shape{1, n, k} : Shape{1, k, n});
          const Tensor y = c.poisoned(DType::f32, {rows, n});
          c.stream().grouped_gemm(y, a.tensor, b.tensor, offsets(c, {0, rows}), {.transpose_b = transpose});
          const Values got = c.values_of(y);
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t j = 0; j < n; ++j) {
              double sum = 0, magnitude = 0;
              for (std::int64_t i = 0; i < k; ++i) {
                const double product = a.values[r * k + i] * b.values[transpose ? j * k + i : i * n + j];
                sum += product;
                magnitude += std::abs(product);
              }
              ASSERT_NEAR(got[r * n + j], sum, static_cast<double>(k) * std::ldexp(magnitude, -24))
                  << "k " << k << ", row " << r << " of " << rows << ", column " << j;
            }
          }
        });
      }
    }
  }
}

// Buffers may be larger than what is in them: what lies behind is neither read nor written.
TEST(GroupedGemm, LeavesRowsBehindTheLastExpertAlone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    on_every_device([&](OpContext& c) {
      const std::int64_t room = 150, k = 24, n = 40;
      const Tensor offset = offsets(c, {0, 3, 3, 70});
      const Input a = c.normal(dtype, {room, k}, 1.0), b = c.normal(dtype, {3, k, n}, 1.0);
      const Tensor poison = c.poisoned(dtype, {room, k});
      c.stream().copy(a.tensor.rows(70, 80), poison.rows(70, 80));
      const Tensor y = c.poisoned(dtype, {room, n}), alone = c.poisoned(dtype, {70, n});
      c.stream().grouped_gemm(y, a.tensor, b.tensor, offset, {});
      c.stream().grouped_gemm(alone, a.tensor.rows(0, 70), b.tensor, offset, {});
      EXPECT_EQ(c.values_of(y.rows(0, 70)), c.values_of(alone));
      for (const double v : c.values_of(y.rows(70, 80))) {
        EXPECT_TRUE(std::isnan(v));
      }
      const Tensor w = c.poisoned(DType::f32, {3, k, k}), w_alone = c.poisoned(DType::f32, {3, k, k});
      c.stream().grouped_gemm_tn(w, a.tensor, a.tensor, offset, 0);
      c.stream().grouped_gemm_tn(w_alone, a.tensor.rows(0, 70), a.tensor.rows(0, 70), offset, 0);
      c.expect("w", w, c.values_of(w_alone), 0);
    });
  }
}

TEST(GroupedGemm, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const Tensor a = c.normal(DType::f32, {6, 4}, 1.0).tensor, b = c.normal(DType::f32, {2, 4, 3}, 1.0).tensor;
    const Tensor y = c.poisoned(DType::f32, {6, 3}), w = c.poisoned(DType::f32, {2, 4, 3});
    const Tensor good = offsets(c, {0, 2, 6}), short_list = offsets(c, {0, 6}), wide = c.poisoned(DType::i64, {3});
    EXPECT_NO_THROW(c.stream().grouped_gemm(y, a, b, good, {}));
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, short_list, {}), Error);
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, wide, {}), Error);
    if (!c.device().asynchronous()) {  // where the host sees them
      EXPECT_THROW(c.stream().grouped_gemm(y, a, b, offsets(c, {0, 5, 4}), {}), Error);
      EXPECT_THROW(c.stream().grouped_gemm(y, a, b, offsets(c, {0, 2, 7}), {}), Error);
      EXPECT_THROW(c.stream().grouped_gemm(y, a, b, offsets(c, {1, 2, 6}), {}), Error);
    }
    EXPECT_THROW(c.stream().grouped_gemm(y, a, b, good, {.transpose_b = true}), Error);
    EXPECT_THROW(c.stream().grouped_gemm_tn(w, y, a, good, 0), Error);
  });
}

}  // namespace
}  // namespace orthant::test::grouped_gemm_test
