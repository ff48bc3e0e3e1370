// StepContext: what one layer, or a part of one, needs to know of the micro-batch that it works on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <orthant/abi/part.h>
#include <orthant/device.h>
#include <orthant/ops.h>
#include <orthant/plan.h>
#include <orthant/tensor.h>

namespace orthant {

struct ObjectiveBatch;  // orthant/objective.h

// One micro-batch on the device. T is the number of tokens that this rank holds: of every sequence, the positions of
// Plan::positions. Regions that cut these rows further take their run of them: StepContext::rows_in.
struct DeviceBatch {
  std::int64_t sequences = 0, positions = 0;
  std::int64_t tokens() const { return sequences * positions; }
  Tensor token, label, position;  // i32 [T]
  Tensor valid;                   // u8 [T]; 0: padding
  Tensor index;                   // i64 [T], the token's number in the step
  std::int64_t valid_count = 0;   // host: tokens that are not padding
  // In the attention core, where a rank may hold other positions.
  std::int64_t core_positions = 0;
  // i32 [sequences * core_positions]: the first position that a token sees; undefined: 0. Where tokens see both ways
  // (Space::both_ways) [2, sequences * core_positions], the first and the last.
  Tensor core_first;
  // The same in blocks without the window; not looked at, and undefined, where model.full_attention_every is 0.
  Tensor core_first_full;
  // The same of whole sequences, in order, for routing groups of tokens that are split among ranks.
  Tensor whole_valid;  // u8 [sequences * S]
  Tensor whole_index;  // i64 [sequences * S]
  Tensor whole_token;  // i32 [sequences * S]; undefined unless a gate reads it
  Tensor value;        // f32 [T, columns] of HostBatch::value; undefined: the source gives none
  // The same sequences in the further token spaces of the model.
  std::vector<DeviceBatch> spaces = {};
  // Of a further space: which of its positions the tokens of space 0 see in the attention core, first and last of their
  // document, i32 [2, T] for Stream::attention_block. last is -1 where there is none.
  Tensor seen_here;
  // What objectives have made of it (Objective::upload), the head's first; null: nothing.
  std::vector<std::shared_ptr<const ObjectiveBatch>> of_objectives;
};

// What a backward pass computes again instead of keeping it. Nothing random or exchanged is decided twice: masks are
// functions of the token, and routing is kept.
enum class Recompute {
  none,
  selective,  // the activations of dense FFNs; those of experts always are
  full        // everything in a block but its input and its routing
};

struct StepSums;  // the core's sums over a step (core/layers/layer.h)

struct StepContext {
  const Plan& plan;
  Stream& stream;
  const DeviceBatch& batch;
  StepSums& sums;
  std::uint32_t step = 0;
  double lr = 0;
  double capacity_share = 1;  // of moe.capacity_factor, by hooks; 1 outside of training
  int micro_batch = 0;
  int space = 0;  // whose tokens `batch` has (Plan::spaces)
  // Of this micro-batch; the same in its forward and its backward pass (memory.recompute, memory.keep_micro_batches).
  Recompute recompute = Recompute::none;
  bool training = true;  // false: no dropout, no jitter, no gradients, nothing counted
  // The one scaling of the loss: 1 / what the objective's loss is a mean over in the global batch (tokens that count,
  // or pairs). From here on gradients are only summed.
  float loss_scale = 1, aux_scale = 0, z_scale = 0;
  // Of the step's global batch, in each token space: tokens that are not padding. Empty outside of training.
  std::span<const std::int64_t> valid = {};

  const Settings& settings() const { return plan.settings(); }
  Device& device() const { return plan.device(); }
  // The rows of `of_tokens`, which has one for each of the batch's tokens, that this rank holds in `region`.
  Tensor rows_in(Region region, const Tensor& of_tokens) const {
    const Range range = plan.rows(region, of_tokens.dim(0));
    return of_tokens.rows(range.begin, range.count);
  }
  DType compute() const;  // run.dtype: f32 or bf16
  // Plan::cross and its adjoint, of rows of this space.
  Tensor cross(Site site, Tensor x) const { return plan.cross(site, std::move(x), stream, space); }
  Tensor cross_back(Site site, Tensor dy) const { return plan.cross_back(site, std::move(dy), stream, space); }
  // The same with the tokens of another space, from that of space 0: what the layers of an encoder are given.
  StepContext in(int other) const;
};

}  // namespace orthant
