// The gradient of a head that many share, against the sum in fp64.
#include "core/layers/repeat_heads.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/device/cpu/bf16.h"
#include "core/modules/make_device.h"

namespace orthant::repeat_heads_test {
namespace {

TEST(RepeatHeads, Bf16GradientsOfManyCopiesAreRoundedOnce) {
  const std::int64_t tokens = 3, heads = 2, repeats = 128, c = 4;
  const std::unique_ptr<Device> device = make_device("cpu", 1);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  std::vector<BFloat16> dy;
  for (std::int64_t i = 0; i < tokens * heads * repeats * c; ++i) {
    dy.push_back(to_bf16(1 + 0.5F * std::sin(0.7F * static_cast<float>(i))));
  }
  const Tensor copies = device->empty(DType::bf16, {tokens, heads * repeats * c});
  stream->upload(copies, dy.data());
  const Tensor sum = repeat_heads_backward(copies, heads, repeats, *stream);
  ASSERT_EQ(sum.dtype(), DType::bf16);
  std::vector<BFloat16> found(static_cast<std::size_t>(tokens * heads * c));
  stream->download(found.data(), sum);
  stream->synchronize();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < c; ++i) {
        double expected = 0;
        for (std::int64_t copy = 0; copy < repeats; ++copy) {
          expected += to_float(dy[static_cast<std::size_t>(((t * heads + head) * repeats + copy) * c + i)]);
        }
        // Half of the last of bf16's 8 bits, and what f32 sums differ by.
        EXPECT_NEAR(to_float(found[static_cast<std::size_t>((t * heads + head) * c + i)]), expected,
                    expected / 256 * 1.001);
      }
    }
  }
}

}  // namespace
}  // namespace orthant::repeat_heads_test
