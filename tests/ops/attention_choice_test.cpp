// When cuDNN is asked for attention, and in what parts: no GPU is needed to know.
#include <gtest/gtest.h>

#include <vector>

#include "core/device/cuda/attention_choice.h"

namespace orthant::test::attention_choice_test {
namespace {

using cuda::attention_part;
using cuda::AttentionPart;
using cuda::cudnn_attention_fits;

AttentionShape shape(std::int64_t batch, std::int64_t positions, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t head_dim) {
  return {batch, positions, heads, kv_heads, head_dim, 0};
}

TEST(AttentionChoice, WhatCudnnIsAskedFor) {
  const AttentionShape usual = shape(2, 4096, 32, 8, 128);
  EXPECT_TRUE(cudnn_attention_fits(DType::bf16, false, usual, 90));
  EXPECT_TRUE(cudnn_attention_fits(DType::bf16, false, usual, 80));
  EXPECT_FALSE(cudnn_attention_fits(DType::f32, false, usual, 90));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, true, usual, 90));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, usual, 75));
  EXPECT_TRUE(cudnn_attention_fits(DType::bf16, false, shape(1, 64, 2, 2, 40), 80));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(1, 64, 2, 2, 20), 80));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(1, 63, 2, 2, 64), 80));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(0, 64, 2, 2, 64), 80));
  // Wide heads on Hopper alone.
  EXPECT_TRUE(cudnn_attention_fits(DType::bf16, false, shape(1, 128, 2, 2, 256), 90));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(1, 128, 2, 2, 256), 80));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(1, 128, 2, 2, 264), 90));
  // 4 query heads of 32768^2 scores of 2 bytes are 8 GiB; of 65536^2, 32 GiB.
  EXPECT_TRUE(cudnn_attention_fits(DType::bf16, false, shape(1, 32768, 32, 8, 128), 90));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(1, 65536, 32, 8, 128), 90));
  EXPECT_FALSE(cudnn_attention_fits(DType::bf16, false, shape(1, std::int64_t{1} << 31, 32, 8, 128), 90));
}

// The slower plan is asked for only where the run must repeat bit by bit, and no other one is then.
TEST(AttentionChoice, TheBackwardRepeatsOnlyWhereItMust) {
  using cuda::BackwardPlan;
  const auto asked = [](bool deterministic) {
    const auto plans = cuda::backward_plans(deterministic);
    return std::vector<BackwardPlan>(plans.begin(), plans.end());
  };
  EXPECT_EQ(asked(true), std::vector{BackwardPlan::deterministic});
  EXPECT_EQ(asked(false), (std::vector{BackwardPlan::any_order, BackwardPlan::deterministic}));
}

TEST(AttentionChoice, WhatOurMatrixKernelsTake) {
  EXPECT_TRUE(cuda::mma_attention_fits(DType::bf16, shape(1, 1, 2, 2, 8)));
  EXPECT_TRUE(cuda::mma_attention_fits(DType::bf16, shape(2, 4096, 32, 8, 256)));
  EXPECT_FALSE(cuda::mma_attention_fits(DType::bf16, shape(1, 64, 2, 2, 20)));
  EXPECT_FALSE(cuda::mma_attention_fits(DType::bf16, shape(1, 64, 2, 2, 264)));
  EXPECT_FALSE(cuda::mma_attention_fits(DType::f32, shape(1, 64, 2, 2, 64)));
}

void expect_part(const AttentionShape& s, std::int64_t batch, std::int64_t kv_heads) {
  const AttentionPart part = attention_part(s);
  EXPECT_EQ(part.batch, batch) << s.batch << " x " << s.positions;
  EXPECT_EQ(part.kv_heads, kv_heads) << s.batch << " x " << s.positions;
}

// Scores of one sequence with 32 heads: 64 MiB at 1024 places, 1 GiB at 4096.
TEST(AttentionChoice, PartsOfTheBackward) {
  expect_part(shape(4, 1024, 32, 8, 128), 4, 8);
  expect_part(shape(24, 1024, 32, 8, 128), 12, 8);  // 16 would be allowed, and does not divide 24
  expect_part(shape(17, 1024, 32, 8, 128), 1, 8);
  expect_part(shape(4, 4096, 32, 8, 128), 1, 8);
  expect_part(shape(4, 8192, 32, 8, 128), 1, 2);
  expect_part(shape(4, 6144, 30, 6, 128), 1, 2);  // 360 MiB a KV head
  expect_part(shape(4, 32768, 32, 8, 128), 1, 1);
}

// Every part's sums, where the calls of the backward begin them.
TEST(AttentionChoice, PartsWhoseSumsBeginWell) {
  for (const AttentionShape& s : {shape(4, 4096, 32, 8, 128), shape(1, 4095, 5, 5, 64), shape(2, 4095, 32, 8, 128),
                                  shape(2, 8190, 30, 6, 128), shape(2, 8190, 6, 6, 128), shape(1, 16381, 6, 3, 128),
                                  shape(1, 16383, 12, 3, 128), shape(6, 2047, 17, 17, 64), shape(1, 515, 6, 1, 80)}) {
    const AttentionPart part = attention_part(s);
    bool all = true;
    for (std::int64_t b = 0; b < s.batch; b += part.batch) {
      for (std::int64_t kv = 0; kv < s.kv_heads; kv += part.kv_heads) {
        const std::int64_t head = b * s.heads + kv * (s.heads / s.kv_heads);
        all = all && head * s.positions * 4 % 16 == 0;
      }
    }
    EXPECT_EQ(cuda::part_sums_aligned(s, part), all) << s.batch << " x " << s.positions << ", " << s.heads << " heads";
  }
  EXPECT_FALSE(cuda::part_sums_aligned(shape(1, 16381, 6, 3, 128), attention_part(shape(1, 16381, 6, 3, 128))));
  EXPECT_TRUE(cuda::part_sums_aligned(shape(1, 515, 6, 1, 80), attention_part(shape(1, 515, 6, 1, 80))));
}

}  // namespace
}  // namespace orthant::test::attention_choice_test
