// Layer: forward and backward written out; no tape. What one layer needs of a step comes in a StepContext.
//
// x [T, d] in the compute dtype, T the tokens of one micro-batch on this rank. A layer pushes onto `saved` in
// forward what it pops, in reverse, in backward.
#pragma once

#include <utility>
#include <vector>

#include <orthant/plan.h>
#include <orthant/seams.h>

namespace orthant {

// One micro-batch on the device; the vectors of core/data/batch.h as tensors [T]: of every sequence the positions that
// this rank holds (Plan::positions). Regions that cut these rows further take their run of them: StepContext::rows_in.
struct DeviceBatch {
  std::int64_t sequences = 0, positions = 0;
  std::int64_t tokens() const { return sequences * positions; }
  Tensor token, label, position;  // i32
  Tensor valid;                   // u8
  Tensor index;                   // i64, global
  std::int64_t valid_count = 0;   // host: tokens that are not padding
  // In the attention core, where other positions may be held.
  std::int64_t core_positions = 0;
  Tensor core_first;  // i32 [sequences * core_positions]; undefined where every sequence is one document
  // Of whole sequences, in order, for routing groups of tokens that are split among ranks.
  Tensor whole_valid;  // u8 [sequences * S]
  Tensor whole_index;  // i64 [sequences * S]
  Tensor whole_token;  // i32 [sequences * S]; undefined unless a gate reads it
};

// What a routed layer counted over the micro-batches of a step.
struct LayerCounters {
  int layer = 0;
  std::vector<std::int64_t> load;        // [E] choices before capacity
  std::vector<std::int64_t> kept;        // [E] choices that an expert computed
  std::int64_t choices = 0;              // valid tokens * K; what the experts chose where they choose
  std::int64_t dropped_by_capacity = 0;  // choices that found their expert full
  std::int64_t dropped_by_chance = 0;    // GShard second choices not kept
};

// Sums over the tokens of a step on this rank.
struct StepSums {
  // Some ranks see the same tokens: one of them counts (Plan::counts_tokens), the others keep theirs to themselves.
  Tensor loss;        // f64 [1] sum of -log p over counted tokens
  Tensor balance, z;  // f64 [1] over all routed layers
  Tensor choices;     // i64 [routed layers of the model, 2, E]: choices kept, and dropped for capacity
};

struct StepContext {
  const Plan& plan;
  Stream& stream;
  const DeviceBatch& batch;
  StepSums& sums;
  std::uint32_t step = 0;
  int micro_batch = 0;
  bool training = true;  // false: no dropout, no jitter, no gradients, nothing counted
  // The one scaling of the loss: 1 / tokens of the global batch that count. From here on gradients are only summed.
  float loss_scale = 1, aux_scale = 0, z_scale = 0;

  const Settings& settings() const { return plan.settings(); }
  Device& device() const { return plan.device(); }
  // Of values for each of the batch's tokens, those of the rows that this rank holds in `region`.
  Tensor rows_in(Region region, const Tensor& of_tokens) const {
    const Range range = plan.rows(region, of_tokens.dim(0));
    return of_tokens.rows(range.begin, range.count);
  }
  DType compute() const { return settings().run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16; }
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) = 0;
  virtual Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) = 0;
  // Its forward already adds to its parameters' gradients.
  virtual bool grads_in_forward() const { return false; }
  const std::vector<ParamGroup*>& groups() const { return groups_; }

 protected:
  std::vector<ParamGroup*> groups_;  // in the order in which they are met in forward
};

// memory.recompute: what a layer's backward computes again instead of keeping it. Nothing random or exchanged is
// decided twice: masks are functions of the token, and routing is kept.
inline bool recomputes_activations(const Settings& settings) {  // of dense FFNs; experts always do
  return settings.memory.recompute == "selective";
}
inline bool recomputes_blocks(const Settings& settings) {  // everything in a block but its input and its routing
  return settings.memory.recompute == "full";
}

inline void push(Saved& saved, Tensor t) {
  saved.tensors.push_back(std::move(t));
}
inline Tensor pop(Saved& saved) {
  require(!saved.tensors.empty(), "a layer's backward takes more than its forward saved");
  Tensor t = std::move(saved.tensors.back());
  saved.tensors.pop_back();
  return t;
}

// y [T, n] = x [T, k] w [n, k]^T.
Tensor linear(const StepContext& ctx, const Tensor& x, const Tensor& w);
// dx [T, k] = dy [T, n] w; dw [n, k] += dy^T x.
Tensor linear_backward(const StepContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dw);

// Dropout of a residual branch, keyed by global token; a no-op when not training or at rate 0.
Tensor branch_dropout(const StepContext& ctx, Tensor y, std::uint32_t site);

}  // namespace orthant
