// cached_attention says what does not fit, before it reads anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device/cpu/key_value_cache.h"
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
    KeyValueCache cache(kv_heads, head_dim);
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

}  // namespace
}  // namespace orthant::cached_attention_test
