// Products of sizes that go to cuBLAS and to Hopper's kernels, against our own plain kernel: it takes what the others
// do not, so the same values in fp32 go there. Needs a GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "experts/cuda/choose_tile.h"
#include "tests/support/op_harness.h"

namespace orthant::test::large_products_test {
namespace {

using cuda::GroupedLayout;
using cuda::HopperTile;

std::unique_ptr<Device> gpu() {
  try {
    return make_device("cuda", 1);
  } catch (const Error&) {
    return nullptr;
  }
}

#define SKIP_WITHOUT_GPU(device) \
  if ((device) == nullptr)       \
  GTEST_SKIP() << "no GPU: the device \"cuda\" was compiled but cannot run here"

enum class Rows { even, skewed };

// Offsets of `rows` rows. Skewed: the first and last experts have none, the second one row, the third nearly all.
std::vector<std::int64_t> offsets(std::int64_t experts, std::int64_t rows, Rows kind) {
  std::vector<std::int64_t> offset{0};
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t even = rows * (e + 1) / experts;
    const std::int64_t skewed = e == 0 ? 0 : e == 1 ? 1 : e == experts - 1 ? rows : rows - (experts - 1 - e) * 3;
    offset.push_back(kind == Rows::even ? even : e + 2 == experts ? rows : skewed);
  }
  return offset;
}

struct Case {
  std::int64_t experts, rows, n, k;
  HopperTile tile;
};

constexpr Case cases[] = {
    {8, 28000, 512, 4608, HopperTile::large},
    {8, 3100, 1224, 256, HopperTile::square},
    {8, 2100, 1920, 840, HopperTile::overlapped},
    {40, 1200, 264, 72, HopperTile::small},
};

TEST(LargeProducts, CasesGoToEachOfHoppersTiles) {
  for (const Case& x : cases) {
    EXPECT_EQ(cuda::choose_tile({.experts = x.experts, .rows = x.rows + 300, .n = x.n, .k = x.k}, 132), x.tile);
  }
}

Tensor in_fp32(OpContext& c, const Tensor& x) {
  const Tensor y = c.poisoned(DType::f32, x.shape());
  c.stream().cast(y, x);
  return y;
}

Tensor offset_tensor(OpContext& c, const std::vector<std::int64_t>& offset) {
  return c.input(DType::i32, {static_cast<std::int64_t>(offset.size())}, {offset.begin(), offset.end()}).tensor;
}

TEST(LargeProducts, RowsByWeightsAsThePlainKernel) {
  const auto device = gpu();
  SKIP_WITHOUT_GPU(device);
  for (const Case& x : cases) {
    for (const Rows kind : {Rows::even, Rows::skewed}) {
      for (const bool transpose : {false, true}) {
        OpContext c(*device);
        const std::int64_t room = x.rows + 300;
        const Tensor offset = offset_tensor(c, offsets(x.experts, x.rows, kind));
        const Tensor a = c.drawn(DType::bf16, {room, x.k}, 1.0);
        const Shape weights = transpose ? Shape{x.experts, x.n, x.k} : Shape{x.experts, x.k, x.n};
        const Tensor b = c.drawn(DType::bf16, weights, 1.0);
        c.stream().fill(a.rows(x.rows, 300), std::nan(""));
        const Tensor y = c.poisoned(DType::bf16, {room, x.n}), again = c.poisoned(DType::bf16, {room, x.n});
        const Tensor want = c.poisoned(DType::f32, {room, x.n});
        c.stream().grouped_gemm(y, a, b, offset, {.transpose_b = transpose});
        c.stream().grouped_gemm(again, a, b, offset, {.transpose_b = transpose});
        c.stream().grouped_gemm(want, in_fp32(c, a), in_fp32(c, b), offset, {.transpose_b = transpose});
        c.expect("y", y.rows(0, x.rows), c.values_of(want.rows(0, x.rows)), 4e-3);
        EXPECT_EQ(c.values_of(again.rows(0, x.rows)), c.values_of(y.rows(0, x.rows)));
        for (const double v : c.values_of(y.rows(x.rows, 300))) {
          ASSERT_TRUE(std::isnan(v)) << "a row behind the last expert's was written";
        }
      }
    }
  }
}

TEST(LargeProducts, GradientsOfWeightsAsThePlainKernel) {
  const auto device = gpu();
  SKIP_WITHOUT_GPU(device);
  for (const Case& x : cases) {
    for (const Rows kind : {Rows::even, Rows::skewed}) {
      for (const float beta : {0.0f, 1.0f}) {
        OpContext c(*device);
        const std::int64_t room = x.rows + 300;
        const Tensor offset = offset_tensor(c, offsets(x.experts, x.rows, kind));
        const Tensor a = c.drawn(DType::bf16, {room, x.k}, 1.0);
        const Tensor b = c.drawn(DType::bf16, {room, x.n}, 1.0);
        c.stream().fill(a.rows(x.rows, 300), std::nan(""));
        const Shape shape{x.experts, x.k, x.n};
        const Tensor old = c.drawn(DType::f32, shape, 1.0);
        const Tensor w = c.poisoned(DType::f32, shape), want = c.poisoned(DType::f32, shape);
        if (beta != 0) {
          c.stream().copy(w, old);
          c.stream().copy(want, old);
        }
        c.stream().grouped_gemm_tn(w, a, b, offset, beta);
        c.stream().grouped_gemm_tn(want, in_fp32(c, a), in_fp32(c, b), offset, beta);
        // The matrix units of Hopper cut an fp32 sum off, towards zero, every 16 steps: after 14,000 steps it may be
        // short by 1e-4.
        c.expect("w", w, c.values_of(want), 4e-4);
      }
    }
  }
}

TEST(LargeProducts, DenseAsThePlainKernel) {
  const auto device = gpu();
  SKIP_WITHOUT_GPU(device);
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const bool transpose : {false, true}) {
        OpContext c(*device);
        const std::int64_t m = 1000, n = 1033, k = 777;
        const Tensor offset = offset_tensor(c, {0, m});
        const Tensor a = c.drawn(in, {m, k}, 1.0);
        const Tensor b = c.drawn(in, transpose ? Shape{n, k} : Shape{k, n}, 1.0);
        const Tensor y = c.poisoned(out, {m, n}), again = c.poisoned(out, {m, n});
        const Tensor want = c.poisoned(DType::f32, {m, n});
        c.stream().gemm(y, a, b, {.transpose_b = transpose});
        c.stream().gemm(again, a, b, {.transpose_b = transpose});
        const Shape one_expert = transpose ? Shape{1, n, k} : Shape{1, k, n};
        c.stream().grouped_gemm(want, in_fp32(c, a), in_fp32(c, b).view(one_expert), offset,
                                {.transpose_b = transpose});
        c.expect("y", y, c.values_of(want), out == DType::f32 ? 1e-5 : 4e-3);
        EXPECT_EQ(c.values_of(again), c.values_of(y));
      }
    }
  }
}

}  // namespace
}  // namespace orthant::test::large_products_test
