// Model: the layers in order, and who must hold which parameters while one runs.
#pragma once

#include <memory>
#include <vector>

#include "core/layers/adapters.h"
#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "core/layers/wide_gradients.h"

namespace orthant {

class HeadLayer;

// What Model::forward and backward put into and take out of the stash while one stage runs its program.
std::vector<StashCall> stash_calls(const Plan& plan, std::span<const Instr> program);

// Who is told how a backward pass goes on.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  // A layer's backward pass is about to be enqueued; what belongs to others may come before it.
  virtual void layer_begins() = 0;
  // The group's gradient is complete on this rank (Keeper::grad_ready), and no layer needs it any more in this step.
  virtual void complete(ParamGroup& group) = 0;
};

class Model {
 public:
  // Collective over the world; begin: see ParamStore. REQUIRES: the plan is frozen, not dry.
  Model(Plan& plan, Stream& stream, bool begin = true);

  ParamStore& parameters() { return parameters_; }
  const ParamStore& parameters() const { return parameters_; }
  int layers() const { return static_cast<int>(places_.size()); }  // of the whole model

  int head() const { return head_; }  // its layer
  // Through layers [first, last), all of this rank's stage: from what is alive before `first` to what is behind the
  // others. Saved activations go to the plan's stash in training.
  Bundle forward(const StepContext& ctx, Bundle x, int first, int last);
  // Of a model that is only read, on a rank whose weights stay where they are: adapters take their place among the
  // weights, whose addresses and contents then stay.
  void merge_adapters(const StepContext& ctx) { adapters_.merge_for_good(ctx); }
  // The logits f32 [T, V_r] behind x [T, d], which has been through all layers before the head. REQUIRES: not in
  // training; this rank's stage has the head, which is as a decoder's (require_decoder).
  Tensor logits(const StepContext& ctx, const Tensor& x);
  // The same in chunks of rows, while the head's weights are held, from hold_head to release_head: first
  // n = head_input(x) [T, d], then head_logits, f32 [rows, V_r] of n's rows from `begin` on. REQUIRES: as logits.
  void hold_head(const StepContext& ctx) { acquire(ctx, head(), Pass::forward); }
  void release_head(const StepContext& ctx) { release(ctx, head(), {}, Pass::forward); }
  Tensor head_input(const StepContext& ctx, const Tensor& x);
  Tensor head_logits(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows);
  // Back through layers [first, last), the last one first. On the step's last micro-batch (`last_micro_batch`)
  // a layer's groups are handed to the keepers as soon as its gradients are complete. listener: null, or told of it.
  Bundle backward(const StepContext& ctx, Bundle dy, int first, int last, bool last_micro_batch,
                  BackwardListener* listener = nullptr);

  // Forgets the gradients of the last step.
  void begin_step();

 private:
  struct Place {
    std::unique_ptr<Layer> layer;  // null where another stage holds it
    std::vector<ParamGroup*> groups;
  };
  const Place& place(int number) const;
  HeadLayer& head_layer() const;
  void acquire(const StepContext& ctx, int number, Pass pass);
  void acquire_grads(const StepContext& ctx, int number, const std::vector<ParamGroup*>& groups, Pass pass);
  void release(const StepContext& ctx, int number, const std::vector<ParamGroup*>& groups, Pass pass);

  ParamStore parameters_;
  Adapters adapters_;
  WideGradients wide_;
  const std::vector<Link>& links_;  // the plan's
  int head_;
  std::vector<Place> places_;
};

}  // namespace orthant
