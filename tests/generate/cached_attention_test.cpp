// cached_attention has the bits of attention to whole sequences, and says what does not fit before it reads anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/device.h>
#include <orthant/ops.h>

#include <algorithm>

#include "apps/lm/key_value_cache.h"
#include "core/modules/make_device.h"
#include "tests/support/error_of.h"

namespace orthant::cached_attention_test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t heads = 4, kv_heads = 2, head_dim = 3, tokens = 5;

struct Call {
  std::vector<float> o = std::vector<float>(tokens * heads * head_dim), lse = std::vector<float>(tokens * heads),
                     q = std::vector<float>(tokens * heads * head_dim, 0.5f),
                     k = std::vector<float>(tokens * kv_heads * head_dim, 0.5f), v = k;
  std::int64_t row = 1, rows = 3, position = 0, grown = 3, query_heads = heads;

  std::string error() {
    KeyValueCache cache(kv_heads, head_dim, DType::f32);
    cache.grow(grown);
    const CachedRows run{&cache, row, rows, position};
    return test::error_of([&] { cached_attention(1, o, lse, q, k, v, {&run, 1}, query_heads, kv_heads, head_dim, 0); });
  }
};

TEST(CachedAttention, RefusesSizesThatDoNotFit) {
  EXPECT_EQ(Call().error(), "no error");
  const auto refused = [&](const std::function<void(Call&)>& spoil, const std::string& words) {
    Call call;
    spoil(call);
    EXPECT_THAT(call.error(), HasSubstr(words));
  };
  refused([](Call& c) { c.o.pop_back(); }, "o has 59 elements, 5 x 12 expected");
  refused([](Call& c) { c.q.pop_back(); }, "q has 59");
  refused([](Call& c) { c.k.pop_back(); }, "k has 29 elements, 5 x 6 expected");
  refused([](Call& c) { c.v.push_back(0); }, "v has 31");
  refused([](Call& c) { c.lse.pop_back(); }, "lse has 19");
  refused([](Call& c) { c.row = 3; }, "rows 3 to 6 of 5 tokens");
  refused([](Call& c) { c.row = -1; }, "rows -1 to 2");
  refused([](Call& c) { c.position = 1; }, "3 rows go on at 1 in a cache that has grown to 3");
  refused([](Call& c) { c.query_heads = 3; }, "cannot share");
}

// Tokens fed in portions, with heads of an odd and of an even number of channels, get what they get in a whole
// sequence.
TEST(CachedAttention, HasTheBitsOfWholeSequences) {
  const std::unique_ptr<Device> device = make_device("cpu", 1);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  Stream& s = *stream;
  std::uint64_t drawn = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t channels : {5, 24}) {
      constexpr std::int64_t positions = 150;
      const AttentionShape shape{1, positions, heads, kv_heads, channels};
      // As fp32, numbers of dtype.
      const auto host = [&](const Tensor& t) {
        const Tensor wide = device->empty(DType::f32, t.shape());
        s.cast(wide, t);
        std::vector<float> values(static_cast<std::size_t>(t.elements()));
        s.download(values.data(), wide);
        s.synchronize();
        return values;
      };
      const auto random = [&](std::int64_t of_heads) {
        const Tensor wide = device->empty(DType::f32, {positions, of_heads * channels});
        const Tensor t = device->empty(dtype, wide.shape());
        s.init_normal(wide, RandomKey{.seed = ++drawn}, 1, {0, 0, of_heads * channels});
        s.cast(t, wide);
        return t;
      };
      const Tensor q = random(heads), k = random(kv_heads), v = random(kv_heads);
      const Tensor o = device->empty(dtype, q.shape()), lse = device->empty(DType::f32, {1, heads, positions});
      s.attention(o, lse, q, k, v, {}, shape);
      const std::vector<float> whole_o = host(o), whole_lse = host(lse), all_q = host(q), all_k = host(k),
                               all_v = host(v);
      KeyValueCache cache(kv_heads, channels, dtype);
      for (std::int64_t at = 0, portion = 1; at < positions; at += portion) {
        portion = std::min(positions - at, at < 4 ? 1 : at % 2 == 0 ? at : std::int64_t{17});
        const auto part = [&](const std::vector<float>& of, std::int64_t width) {
          return std::span(of).subspan(static_cast<std::size_t>(at * width), static_cast<std::size_t>(portion * width));
        };
        const Tensor got = device->empty(DType::f32, {portion, heads * channels});
        std::vector<float> got_lse(static_cast<std::size_t>(portion * heads));
        cache.grow(portion);
        const CachedRows run{&cache, 0, portion, at};
        cached_attention(1, {got.as<float>(), static_cast<std::size_t>(got.elements())}, got_lse,
                         part(all_q, heads * channels), part(all_k, kv_heads * channels),
                         part(all_v, kv_heads * channels), {&run, 1}, heads, kv_heads, channels, 0);
        const Tensor rounded = device->empty(dtype, got.shape());
        s.cast(rounded, got);
        const auto expected = part(whole_o, heads * channels);
        EXPECT_EQ(host(rounded), std::vector<float>(expected.begin(), expected.end()))
            << name_of(dtype) << " " << channels << " from " << at;
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t i = 0; i < portion; ++i) {
            EXPECT_EQ(got_lse[static_cast<std::size_t>(h * portion + i)],
                      whole_lse[static_cast<std::size_t>(h * positions + at + i)]);
          }
        }
      }
    }
  }
}

TEST(CachedAttention, PairsOfBf16TakeHalf) {
#if defined(__AVX512BF16__)
  constexpr std::int64_t share = 2;
#else
  constexpr std::int64_t share = 1;
#endif
  EXPECT_EQ(KeyValueCache(2, 64, DType::f32).bytes_of(65), 2 * 2 * 2 * 64 * 64 * 4);
  EXPECT_EQ(KeyValueCache(2, 64, DType::bf16).bytes_of(65), 2 * 2 * 2 * 64 * 64 * 4 / share);
}

TEST(CachedAttention, RefusesCachesOfSeveralTypes) {
  KeyValueCache one(kv_heads, head_dim, DType::f32), other(kv_heads, head_dim, DType::bf16);
  one.grow(1);
  other.grow(1);
  Call call;
  const CachedRows runs[] = {{&one, 0, 1, 0}, {&other, 1, 1, 0}};
  EXPECT_THAT(test::error_of([&] {
                cached_attention(1, call.o, call.lse, call.q, call.k, call.v, runs, heads, kv_heads, head_dim, 0);
              }),
              HasSubstr("caches of f32 and of bf16"));
}

}  // namespace
}  // namespace orthant::cached_attention_test
