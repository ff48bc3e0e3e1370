// Copies that end later and a warp's matrices under the shim: what must be noticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/device/cuda/tensor_core.h"

namespace orthant::cuda::tensor_core_test {
namespace {

using ::testing::HasSubstr;

// Two groups of copies, of which the second may be left: what a thread then finds in either place.
template <int left>
__global__ void copies_in_groups(float* out, const float* from) {
  float* const memory = dynamic_shared<float>() + threadIdx.x * 8;
  start_copy(memory, from + threadIdx.x * 4);
  end_copies();
  start_copy(memory + 4, threadIdx.x == 5 ? nullptr : from + threadIdx.x * 4);
  end_copies();
  wait_for_copies<left>();
  out[threadIdx.x * 2] = memory[0];
  out[threadIdx.x * 2 + 1] = memory[4];
}

TEST(SimtCopies, AreNaNUntilTheyAreWaitedFor) {
  alignas(16) static float from[32 * 4];
  for (int i = 0; i < 32 * 4; ++i) {
    from[i] = static_cast<float>(i + 1);
  }
  std::vector<float> none(64), first(64), both(64);
  launch(copies_in_groups<2>, Grid{1, 32, 1024}, nullptr, none.data(), from);
  launch(copies_in_groups<1>, Grid{1, 32, 1024}, nullptr, first.data(), from);
  launch(copies_in_groups<0>, Grid{1, 32, 1024}, nullptr, both.data(), from);
  for (int i = 0; i < 32; ++i) {
    EXPECT_TRUE(std::isnan(none[2 * i]) && std::isnan(none[2 * i + 1])) << i;
    EXPECT_EQ(first[2 * i], from[4 * i]);
    EXPECT_TRUE(std::isnan(first[2 * i + 1])) << i;
    EXPECT_EQ(both[2 * i], from[4 * i]);
    EXPECT_EQ(both[2 * i + 1], i == 5 ? 0.0f : from[4 * i]);
  }
}

// ldmatrix reads rows of 16 aligned bytes; a GPU stops at others.
__global__ void loads_unaligned(float* out, int elements) {
  const bf16* const rows = dynamic_shared<bf16>();
  std::uint32_t r[4];
  load_matrices<false>(r, rows + lane() * 8 + elements);
  out[lane()] = static_cast<float>(r[0]);
}

TEST(SimtMatrices, RowsThatAreNotAlignedAreAnError) {
  std::vector<float> out(32);
  launch(loads_unaligned, Grid{1, 32, 1024}, nullptr, out.data(), 0);
  try {
    launch(loads_unaligned, Grid{1, 32, 1024}, nullptr, out.data(), 4);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ldmatrix: a row at"));
  }
}

}  // namespace
}  // namespace orthant::cuda::tensor_core_test
