// The plain tiles of attention depend on the shared memory of the GPU, what they compute does not.
#include "tests/simt/device_library.h"
#include "tests/support/op_harness.h"

namespace orthant::test::attention_tiles_test {
namespace {

// Every output of both directions, of what is the same input each time.
std::vector<Values> attention_on(const char* architecture, DType dtype, const AttentionShape& s, bool documents) {
  const WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", architecture);
  const auto device = make_device("simt", 1);
  OpContext c(*device);
  const std::int64_t rows = s.batch * s.positions;
  const Shape wide{rows, s.heads * s.head_dim}, narrow{rows, s.kv_heads * s.head_dim};
  const Tensor q = c.normal(dtype, wide, 1.5).tensor, k = c.normal(dtype, narrow, 1.5).tensor;
  const Tensor v = c.normal(dtype, narrow, 1).tensor, d_o = c.normal(dtype, wide, 1).tensor;
  Tensor first;
  if (documents) {
    Values begins;
    for (std::int64_t t = 0; t < rows; ++t) {
      begins.push_back(static_cast<double>(t % s.positions / 21 * 21));
    }
    first = c.input(DType::i32, {rows}, begins).tensor;
  }
  const Tensor o = c.poisoned(dtype, wide), lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
  const Tensor dq = c.poisoned(dtype, wide), dk = c.poisoned(dtype, narrow), dv = c.poisoned(dtype, narrow);
  c.stream().attention(o, lse, q, k, v, first, s);
  c.stream().attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, first, s);
  return {c.values_of(o), c.values_of(lse), c.values_of(dq), c.values_of(dk), c.values_of(dv)};
}

TEST(AttentionTiles, TheSameBitsWhateverTheSharedMemory) {
  for (const std::int64_t channels : {64, 128, 256}) {
    for (const bool documents : {false, true}) {
      const DType dtype = documents ? DType::bf16 : DType::f32;
      // In bf16 rows of 8-byte steps, which the matrix units do not take.
      const AttentionShape shape{1, 130, 2, 1, documents ? channels - 4 : channels};
      const std::vector<Values> large = attention_on("90", dtype, shape, documents);
      for (const char* gpu : {"80", "86", "89", "120"}) {
        EXPECT_EQ(attention_on(gpu, dtype, shape, documents), large) << shape.head_dim << " channels on sm_" << gpu;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::test::attention_tiles_test
