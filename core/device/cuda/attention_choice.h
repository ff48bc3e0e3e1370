// Which attention cuDNN's fused kernels are asked for, and in what parts, and which our kernels on the matrix units
// take of the rest. No CUDA here: tested without a GPU.
#pragma once

#include <orthant/ops.h>

#include <span>

namespace orthant::cuda {

// Sequences and KV heads (with their query heads) of one call of cuDNN's backward. They divide the shape's.
struct AttentionPart {
  std::int64_t batch = 0, kv_heads = 0;
};

// cuDNN's deterministic backward keeps a bf16 score of every pair of places of a part: as much as a part should need,
// and what a single KV head may need at most.
inline constexpr std::int64_t wanted_part_bytes = std::int64_t{1} << 30, most_part_bytes = std::int64_t{8} << 30;

// Of the scores of one KV head's query heads in one sequence.
inline std::int64_t score_bytes(const AttentionShape& s) {
  const std::int64_t rows = (s.positions + 63) / 64 * 64, columns = (s.positions + 127) / 128 * 128;
  return s.heads / s.kv_heads * rows * columns * 2;
}

// The greatest divisor of n that is at most `most`; 1 if `most` is less.
inline std::int64_t greatest_divisor(std::int64_t n, std::int64_t most) {
  std::int64_t d = most < n ? most : n;
  while (d > 1 && n % d != 0) {
    --d;
  }
  return d < 1 ? 1 : d;
}

// The largest part that needs at most wanted_part_bytes, or one KV head of one sequence.
inline AttentionPart attention_part(const AttentionShape& s) {
  const std::int64_t affordable = wanted_part_bytes / score_bytes(s);  // KV heads
  if (affordable >= s.kv_heads) {
    return {greatest_divisor(s.batch, affordable / s.kv_heads), s.kv_heads};
  }
  return {1, greatest_divisor(s.kv_heads, affordable)};
}

// Whether the sums of every part (lse, f32 [batch, heads, positions]) begin at a multiple of 16 bytes. The front end
// declares all tensors so, checks q, k, v, o and their gradients alone, and kernels read as they were told.
inline bool part_sums_aligned(const AttentionShape& s, const AttentionPart& part) {
  const std::int64_t heads = part.kv_heads * (s.heads / s.kv_heads);
  return (part.batch == s.batch && part.kv_heads == s.kv_heads) || part.batch * heads * s.positions % 4 == 0;
}

// What cuDNN's backward is asked for, one after the other until it has one. Its deterministic plan keeps scores and is
// the slower one: it comes second where steps need not repeat bit by bit (run.deterministic = false), and is not
// replaced by the other one where they must.
enum class BackwardPlan { deterministic, any_order };
inline std::span<const BackwardPlan> backward_plans(bool deterministic) {
  static constexpr BackwardPlan order[] = {BackwardPlan::any_order, BackwardPlan::deterministic};
  return deterministic ? std::span(order).last(1) : std::span(order);
}

// Whether cuDNN may be asked: bf16, whole sequences without documents, heads that its kernels have, and not so long
// that the backward's scores would fill the memory. Other attention is for kernels of ours.
// architecture: 80 for sm_80, 90 for Hopper.
inline bool cudnn_attention_fits(DType dtype, bool documents, const AttentionShape& s, int architecture) {
  // Shorter sequences are not worth it, and longer ones than this overflow the product below.
  constexpr std::int64_t shortest = 64, longest = std::int64_t{1} << 20;
  const bool hopper = architecture / 10 == 9;
  return dtype == DType::bf16 && !documents && architecture >= 80 && s.batch > 0 && s.kv_heads > 0 &&
         s.heads >= s.kv_heads && s.heads % s.kv_heads == 0 && s.positions >= shortest && s.positions <= longest &&
         (s.kv_positions == 0 || s.kv_positions == s.positions) && s.head_dim > 0 && s.head_dim % 8 == 0 &&
         s.head_dim <= (hopper ? 256 : 128) && score_bytes(s) <= most_part_bytes;
}

// Whether our kernels on the matrix units (attention_mma.h) have such heads: rows of 16-byte pieces.
inline bool mma_attention_fits(DType dtype, const AttentionShape& s) {
  return dtype == DType::bf16 && s.head_dim % 8 == 0 && s.head_dim <= 256;
}

}  // namespace orthant::cuda
