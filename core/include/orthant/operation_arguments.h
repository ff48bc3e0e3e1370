// What operations of a Stream (ops.h) take beside tensors and numbers.
#pragma once

#include <cstdint>

#include <orthant/abi/operations.h>
#include <orthant/operation_kinds.h>
#include <orthant/tensor.h>

namespace orthant {

// C = op(A) op(B) + beta * C. A, B, C are 2-D; op is transpose where the flag says.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  float beta = 0.0f;  // 0 or 1
};

struct AttentionShape {
  std::int64_t batch = 0;      // sequences
  std::int64_t positions = 0;  // of each sequence
  std::int64_t heads = 0;      // query heads
  std::int64_t kv_heads = 0;   // divides heads
  std::int64_t head_dim = 0;
  std::int64_t kv_positions = 0;  // keys of each sequence, for blocks of attention; 0: as positions
  int block = -1;                 // that asks, for an AttentionCore; no operation reads it
  float softcap = 0;              // scores s become softcap * tanh(s / softcap); 0: they stay
  int space = 0, kv_space = 0;  // of queries and of keys (Plan::spaces), for an AttentionCore; no operation reads them
};

// What becomes of the frequencies of rotary pairs where sequences are longer than those of the first training. A pair's
// frequency f becomes f * (kept + (1 - kept) / factor), in fp64. kept is at_zero + by_frequency * f + by_pair * i for
// pair i, cut off at 0 and 1. Linear interpolation, Llama 3's rule and YaRN are of this form (core/arch/rotary.h). With
// `divided` f is then divided by the pair's own divisor: LongRoPE.
constexpr int most_divided_pairs = 128;
struct RotaryScaling {
  double factor = 1;
  double at_zero = 1, by_frequency = 0, by_pair = 0;
  double magnitude = 1;  // all cosines and sines are multiplied by it
  bool divided = false;
  float divisor[most_divided_pairs] = {};  // no std::array: kernels index it, and its operator[] is the host's
  bool operator==(const RotaryScaling&) const = default;
};

struct RotaryShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double theta = 10000;  // 0: no rotation, only the split
  RotaryScaling scaling = {};
  bool interleaved = false;  // pairs are the channels 2 i and 2 i + 1, else i and i + r / 2
  std::int64_t plain = 0;    // so many channels of each head are not rotated: the first ones,
  bool plain_last = false;   // or the last
};

struct AdamW {
  float lr, beta1, beta2, eps, weight_decay;
  float correction1, correction2;  // 1 - beta^step
};

struct Sgd {
  float lr, momentum, weight_decay;
};

// The place of a slice in its global tensor: up to 2 dimensions, row-major.
struct SliceMap {
  std::int64_t row_begin = 0, column_begin = 0, global_columns = 0;
};

// A run of rows of a segmented copy.
struct RowRun {
  std::int64_t from, to, rows;
};

// The routing of one MoE layer's tokens on one rank (router/). What gates differ in are properties here; a gate sets
// them (gate.h).
struct GateConfig {
  ScoreKind score = ScoreKind::softmax;
  std::int64_t experts = 0, top_k = 1;
  std::int64_t zero_experts = 0;     // the last of `experts` compute nothing (moe.zero_experts)
  bool normalize_weights = true;     // of a token's choices: their scores over their sum, else their scores
  std::int64_t counted_choices = 0;  // a token's first so many choices enter `chosen`; 0: all
  bool experts_choose = false;       // else each token chooses top_k experts
  bool second_by_chance = false;     // of two choices the second is kept with probability 2 * weight (GShard)
  bool first_choices_first = false;  // where seats go by probability: first choices before all others (GShard)
  std::int64_t expert_groups = 1, groups_per_token = 1;  // choose_experts
  GroupScore group_score = GroupScore::top2_sum;         // choose_experts
  double capacity_factor = 0;                            // 0: dropless
  std::int64_t group_tokens = 0;                         // tokens of one GShard group; rows come in whole groups
  DropPolicy drop_policy = DropPolicy::position;
  // Packed rows that dispatch_plan sets apart for each expert; 0: as many as the expert gets. A capacity gives a
  // constant that suffices and needs no counts: ranks can then exchange blocks of one size.
  std::int64_t rows_per_expert = 0;

  // Those that have weights, seats and rows.
  std::int64_t computing() const { return experts - zero_experts; }
};

// The places of the choices of T tokens among R packed rows: Stream::dispatch_plan.
struct Dispatch {
  Tensor row;     // i32 [T, K]
  Tensor source;  // i32 [R, 1]
  Tensor offset;  // i32 [E + 1]
  Tensor weight;  // f32 [T, K]
};

}  // namespace orthant
