// zero_empty_experts, which only Hopper's kernels need and no operation on the device "simt" calls.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "experts/cuda/plain/grouped_plain.cu"

namespace orthant::cuda::empty_experts_test {
namespace {

TEST(EmptyExperts, GetZeroAndOthersKeepWhatTheyHave) {
  // Experts 0, 2 and 5 are empty, and 4 as well: there are 9 rows in all.
  const std::vector<std::int32_t> offset = {0, 0, 5, 5, 9, 20, 20};
  for (const std::int64_t m : {1, 40, 700}) {
    const std::int64_t n = 333;
    std::vector<float> c(6 * m * n, 7.0f);
    zero_empty_experts(
        {.layout = GroupedLayout::tn, .experts = 6, .rows = 9, .m = m, .n = n, .c = c.data(), .offset = offset.data()},
        nullptr);
    for (std::size_t i = 0; i < c.size(); ++i) {
      const std::size_t e = i / static_cast<std::size_t>(m * n);
      ASSERT_EQ(c[i], e == 1 || e == 3 ? 7.0f : 0.0f) << "element " << i << " of expert " << e;
    }
  }
}

}  // namespace
}  // namespace orthant::cuda::empty_experts_test
