// The routed FFN at sizes of many tiles for each multiprocessor: fused against packed, each on a device that is told so
// (experts/cuda/choose_kernels.h), and twice, for the same bits. Needs a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/support/op_harness.h"

namespace orthant::test::large_experts_test {
namespace {

// Null where there is no GPU.
std::unique_ptr<Device> gpu_with(const char* experts) {
  setenv("ORTHANT_CUDA_EXPERTS", experts, 1);
  std::unique_ptr<Device> device;
  try {
    device = make_device("cuda", 1);
  } catch (const Error&) {
  }
  unsetenv("ORTHANT_CUDA_EXPERTS");
  return device;
}

constexpr std::int64_t tokens = 6000, d = 1032, f = 520, experts = 24, top_k = 2;

// Every 50th choice is not made; expert 0 gets no row, expert 1 a quarter of all.
Values choices() {
  Values expert;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t k = 0; k < top_k; ++k) {
      const std::int64_t i = t * top_k + k, e = t % 2 == k ? (t % 4 < 2 ? 1 : 2 + t % 11) : 13 + t % 11;
      expert.push_back(i % 50 == 49 ? -1 : static_cast<double>(e));
    }
  }
  return expert;
}

std::map<std::string, Values> layer(Device& device, Activation kind) {
  OpContext c(device);
  const std::int64_t n = is_gated(kind) ? 2 * f : f, room = tokens * top_k;
  const Shape chosen{tokens, top_k};
  const Tensor weight = c.drawn(DType::f32, chosen, 1);
  const Dispatch to{.row = c.poisoned(DType::i32, chosen),
                    .source = c.poisoned(DType::i32, {room, 1}),
                    .offset = c.poisoned(DType::i32, {experts + 1}),
                    .weight = weight};
  c.stream().dispatch_plan(to.row, to.source, c.poisoned(DType::i32, {experts}), c.poisoned(DType::i32, {experts}),
                           to.offset, c.input(DType::i32, chosen, choices()).tensor, weight,
                           c.constant(DType::u8, {tokens}, 1).tensor,
                           {.experts = experts, .top_k = top_k, .group_tokens = tokens});
  const Tensor x = c.drawn(DType::bf16, {tokens, d}, 1), dy = c.drawn(DType::bf16, {tokens, d}, 1);
  const Tensor w_in = c.drawn(DType::bf16, {experts, n, d}, 0.03);
  const Tensor w_out = c.drawn(DType::bf16, {experts, d, f}, 0.03);
  const Tensor dw_in = c.drawn(DType::f32, {experts, n, d}, 1);
  const Tensor dw_out = c.drawn(DType::f32, {experts, d, f}, 1);
  const Tensor y = c.poisoned(DType::bf16, {tokens, d}), h = c.poisoned(DType::bf16, {room, n});
  const Tensor dx = c.poisoned(DType::bf16, {tokens, d}), dweight = c.poisoned(DType::f32, chosen);
  c.stream().expert_ffn(y, h, x, w_in, w_out, to, kind);
  c.stream().expert_ffn_backward(dx, dweight, dw_in, dw_out, dy, x, h, w_in, w_out, to, kind, 1);
  return {{"y", c.values_of(y)},
          {"dx", c.values_of(dx)},
          {"dweight", c.values_of(dweight)},
          {"dw_in", c.values_of(dw_in)},
          {"dw_out", c.values_of(dw_out)}};
}

TEST(LargeExperts, FusedAsPacked) {
  const auto packed = gpu_with("packed"), fused = gpu_with("fused");
  if (packed == nullptr) {
    GTEST_SKIP() << "no GPU: the device \"cuda\" was compiled but cannot run here";
  }
  for (const Activation kind : {Activation::swiglu, Activation::gelu}) {
    const auto want = layer(*packed, kind), got = layer(*fused, kind), again = layer(*fused, kind);
    for (const auto& [name, values] : want) {
      const Values& other = got.at(name);
      EXPECT_EQ(other, again.at(name)) << name << " has other bits the second time";
      double squares = 0, greatest = 0;
      ASSERT_EQ(other.size(), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_TRUE(std::isfinite(values[i]) && std::isfinite(other[i])) << name << " element " << i;
        squares += values[i] * values[i];
        greatest = std::max(greatest, std::abs(other[i] - values[i]) - 0.03 * std::abs(values[i]));
      }
      // Sums run in other orders; packed, da is rounded to 8 bits too. (The greatest of 8 million differences was
      // 0.034.)
      EXPECT_LT(greatest, 0.05 * std::sqrt(squares / static_cast<double>(values.size()))) << name;
    }
  }
}

}  // namespace
}  // namespace orthant::test::large_experts_test
