// LatentCache: keys and values stay as long as they find room, and are given back. (That bits do not depend on it:
// one_answer_test.cpp.)
#include <gtest/gtest.h>

#include "apps/lm/latent_cache.h"
#include "core/modules/make_device.h"

namespace orthant::latent_cache_test {
namespace {

constexpr std::int64_t heads = 2, head_dim = 3, width = 4;
const std::int64_t of_64_tokens = KeyValueCache(heads, head_dim, DType::f32).bytes_of(64);

class LatentRoom : public testing::Test {
 protected:
  // `rows` further tokens of a sequence, in both layers. Returns how many rows were widened.
  std::int64_t feed(LatentCache& cache, int sequence, std::int64_t position, std::int64_t rows) {
    Stream& s = *stream_;
    const Tensor q = device_->empty(DType::f32, {rows, heads * head_dim});
    const Tensor narrow = device_->empty(DType::f32, {rows, width});
    s.fill(q, 0.5f);
    s.fill(narrow, 0.25f);
    std::int64_t widened = 0;
    const auto widen = [&](const Tensor& from) {
      widened += from.dim(0);
      const LatentCore::Keys keys{device_->empty(DType::f32, {from.dim(0), heads * head_dim}),
                                  device_->empty(DType::f32, {from.dim(0), heads * head_dim})};
      s.fill(keys.k, 0.5f);
      s.fill(keys.v, 2);
      return keys;
    };
    cache.begin({{sequence, 0, rows, position}});
    for (int layer = 0; layer < 2; ++layer) {
      const Tensor o = cache.attend(q, narrow, widen, {1, rows, heads, heads, head_dim}, s);
      std::vector<float> host(static_cast<std::size_t>(o.elements()));
      s.download(host.data(), o);
      s.synchronize();
      for (const float value : host) {
        EXPECT_NEAR(value, 2, 1e-6);
      }
    }
    return widened;
  }

  std::unique_ptr<Device> device_ = make_device("cpu", 1);
  std::unique_ptr<Stream> stream_ = device_->make_main_stream();
};

TEST_F(LatentRoom, IsTakenAndGivenBack) {
  LatentCache cache(1, 3 * of_64_tokens);
  cache.hold({0, 0});
  EXPECT_EQ(feed(cache, 0, 0, 60), 120);  // each token once in each layer
  EXPECT_EQ(cache.taken(), 2 * of_64_tokens);
  EXPECT_EQ(feed(cache, 1, 0, 10), 20);  // the third; the second layer's find no room
  EXPECT_EQ(cache.taken(), 3 * of_64_tokens);
  EXPECT_EQ(feed(cache, 1, 10, 1), 2 + 10 + 2);  // the ten earlier ones again, as 12 rows
  EXPECT_EQ(cache.taken(), 3 * of_64_tokens);
  cache.forget(0);
  EXPECT_EQ(cache.taken(), of_64_tokens);
  EXPECT_EQ(feed(cache, 1, 11, 1), 2 + 12);  // once more, and then they stay
  EXPECT_EQ(cache.taken(), 2 * of_64_tokens);
  EXPECT_EQ(feed(cache, 1, 12, 1), 2);
  // A sequence that outgrows the room makes place.
  EXPECT_EQ(feed(cache, 1, 13, 60), 120 + 16);
  EXPECT_EQ(cache.taken(), 2 * of_64_tokens);
  cache.forget(1);
  EXPECT_EQ(cache.taken(), 0);
}

TEST_F(LatentRoom, MayBeNone) {
  LatentCache cache(1, 0);
  cache.hold({0, 0});
  EXPECT_EQ(feed(cache, 3, 0, 5), 10);
  EXPECT_EQ(feed(cache, 3, 5, 2), 2 * (2 + 8));
  EXPECT_EQ(cache.taken(), 0);
}

}  // namespace
}  // namespace orthant::latent_cache_test
