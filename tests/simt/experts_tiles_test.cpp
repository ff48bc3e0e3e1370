// The experts' products by mma.sync on GPUs with more and with less shared memory: other numbers of stages, the same
// bits. What they should be, the lists of operations say (tests/experts), which run on sm_80.
#include <gtest/gtest.h>

#include "tests/simt/device_library.h"
#include "tests/support/op_harness.h"

namespace orthant::test::experts_tiles_test {
namespace {

// Experts with no row, one, and more than a tile; sums of fewer slices than stages, and of more.
constexpr std::int64_t tokens = 170, experts = 4, top_k = 2;

Values choices() {
  Values expert;
  for (std::int64_t i = 0; i < tokens * top_k; ++i) {
    expert.push_back(i % 2 == 0 ? 1 : i == 1 ? 2 : i % 7 == 0 ? -1 : 3);
  }
  return expert;
}

using Bits = std::map<std::string, Values>;

Bits layer(Device& device, Activation kind, std::int64_t d, std::int64_t f) {
  OpContext c(device);
  const std::int64_t n = is_gated(kind) ? 2 * f : f, room = tokens * top_k;
  const Shape chosen{tokens, top_k};
  const Tensor weight = c.normal(DType::f32, chosen, 1).tensor;
  const Dispatch to{.row = c.poisoned(DType::i32, chosen),
                    .source = c.poisoned(DType::i32, {room, 1}),
                    .offset = c.poisoned(DType::i32, {experts + 1}),
                    .weight = weight};
  c.stream().dispatch_plan(to.row, to.source, c.poisoned(DType::i32, {experts}), c.poisoned(DType::i32, {experts}),
                           to.offset, c.input(DType::i32, chosen, choices()).tensor, weight,
                           c.constant(DType::u8, {tokens}, 1).tensor,
                           {.experts = experts, .top_k = top_k, .group_tokens = tokens});
  const Tensor x = c.normal(DType::bf16, {tokens, d}, 1).tensor, dy = c.normal(DType::bf16, {tokens, d}, 1).tensor;
  const Tensor w_in = c.normal(DType::bf16, {experts, n, d}, 0.1).tensor;
  const Tensor w_out = c.normal(DType::bf16, {experts, d, f}, 0.1).tensor;
  const Tensor dw_in = c.normal(DType::f32, {experts, n, d}, 1).tensor;
  const Tensor dw_out = c.normal(DType::f32, {experts, d, f}, 1).tensor;
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

TEST(ExpertsTiles, GiveTheSameBitsWithFourStagesAndThree) {
  struct Case {
    Activation kind;
    std::int64_t d, f;
  };
  for (const Case& x : {Case{Activation::swiglu, 40, 136}, Case{Activation::gelu, 264, 24}}) {
    Bits expected;
    for (const char* gpu : {"80", "120"}) {
      SCOPED_TRACE(std::string("sm_") + gpu);
      const WithVariable architecture("ORTHANT_SIMT_ARCHITECTURE", gpu);
      const auto device = make_device("simt", 1);
      const Bits got = layer(*device, x.kind, x.d, x.f);
      expected = expected.empty() ? got : expected;
      for (const auto& [name, values] : expected) {
        EXPECT_EQ(got.at(name), values) << name;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::test::experts_tiles_test
