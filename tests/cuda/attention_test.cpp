// Attention by cuDNN against kernels of our own, at sizes for which the operation tests' oracle is too slow. Documents
// that all begin at 0 change nothing, and go to our kernels. Where the build has no cuDNN, both are ours.
#include <cmath>

#include "tests/support/op_harness.h"

namespace orthant::test::attention_test {
namespace {

struct Results {
  Tensor o, lse, dq, dk, dv;
};

Results run(OpContext& c, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d_o,
            const Tensor& first) {
  const Results r{c.poisoned(q.dtype(), q.shape()), c.poisoned(DType::f32, {s.batch, s.heads, s.positions}),
                  c.poisoned(q.dtype(), q.shape()), c.poisoned(q.dtype(), k.shape()), c.poisoned(q.dtype(), v.shape())};
  c.stream().attention(r.o, r.lse, q, k, v, first, s);
  c.stream().attention_backward(r.dq, r.dk, r.dv, d_o, q, k, v, r.o, r.lse, first, s);
  return r;
}

// The difference's length, as a share of the expected values'.
double distance(const Values& got, const Values& expected) {
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
  }
  return std::sqrt(difference / inner(expected, expected));
}

TEST(CudaAttention, CudnnAgreesWithOurKernels) {
  std::unique_ptr<Device> device;
  try {
    device = make_device("cuda", 1);
  } catch (const Error& error) {
    GTEST_SKIP() << "no GPU: " << error.what();
  }
  OpContext c(*device);
  // The last two are more than one part of cuDNN's backward: of the batch, of the heads.
  for (const AttentionShape& s :
       {AttentionShape{2, 1024, 8, 2, 128}, AttentionShape{1, 2000, 4, 4, 64}, AttentionShape{1, 515, 6, 1, 80},
        AttentionShape{3, 256, 4, 2, 40}, AttentionShape{2, 64, 2, 2, 8}, AttentionShape{1, 300, 2, 2, 256},
        AttentionShape{2, 4096, 32, 8, 64}, AttentionShape{1, 8192, 16, 4, 64}}) {
    SCOPED_TRACE(fmt::format("{} x {} positions, {} heads ({} KV) of {}", s.batch, s.positions, s.heads, s.kv_heads,
                             s.head_dim));
    const std::int64_t rows = s.batch * s.positions;
    const Shape wide{rows, s.heads * s.head_dim}, narrow{rows, s.kv_heads * s.head_dim};
    const Tensor q = c.drawn(DType::bf16, wide, 1.5), k = c.drawn(DType::bf16, narrow, 1.5);
    const Tensor v = c.drawn(DType::bf16, narrow, 1), d_o = c.drawn(DType::bf16, wide, 1);
    const Results got = run(c, s, q, k, v, d_o, {});
    const Results again = run(c, s, q, k, v, d_o, {});
    const Results expected = run(c, s, q, k, v, d_o, c.constant(DType::i32, {rows}, 0).tensor);
    // bf16 has 8 bits, and cuDNN rounds the weights to it too.
    EXPECT_LT(distance(c.values_of(got.o), c.values_of(expected.o)), 0.01);
    EXPECT_LT(distance(c.values_of(got.lse), c.values_of(expected.lse)), 1e-4);
    EXPECT_LT(distance(c.values_of(got.dq), c.values_of(expected.dq)), 0.02);
    EXPECT_LT(distance(c.values_of(got.dk), c.values_of(expected.dk)), 0.02);
    EXPECT_LT(distance(c.values_of(got.dv), c.values_of(expected.dv)), 0.02);
    EXPECT_EQ(c.values_of(got.o), c.values_of(again.o));
    EXPECT_EQ(c.values_of(got.dq), c.values_of(again.dq));
    EXPECT_EQ(c.values_of(got.dk), c.values_of(again.dk));
    EXPECT_EQ(c.values_of(got.dv), c.values_of(again.dv));
  }
}

// Without run.deterministic cuDNN may add in any order: the same values, in other bits.
TEST(CudaAttention, AnyOrderOfSumsAgreesWithOurKernels) {
  std::unique_ptr<Device> device;
  try {
    device = make_device("cuda", 1, false);
  } catch (const Error& error) {
    GTEST_SKIP() << "no GPU: " << error.what();
  }
  OpContext c(*device);
  for (const AttentionShape& s : {AttentionShape{2, 1024, 8, 2, 128}, AttentionShape{1, 515, 6, 1, 80}}) {
    SCOPED_TRACE(fmt::format("{} positions, heads of {}", s.positions, s.head_dim));
    const std::int64_t rows = s.batch * s.positions;
    const Shape wide{rows, s.heads * s.head_dim}, narrow{rows, s.kv_heads * s.head_dim};
    const Tensor q = c.drawn(DType::bf16, wide, 1.5), k = c.drawn(DType::bf16, narrow, 1.5);
    const Tensor v = c.drawn(DType::bf16, narrow, 1), d_o = c.drawn(DType::bf16, wide, 1);
    const Results got = run(c, s, q, k, v, d_o, {});
    const Results expected = run(c, s, q, k, v, d_o, c.constant(DType::i32, {rows}, 0).tensor);
    EXPECT_LT(distance(c.values_of(got.dq), c.values_of(expected.dq)), 0.02);
    EXPECT_LT(distance(c.values_of(got.dk), c.values_of(expected.dk)), 0.02);
    EXPECT_LT(distance(c.values_of(got.dv), c.values_of(expected.dv)), 0.02);
  }
}

}  // namespace
}  // namespace orthant::test::attention_test
