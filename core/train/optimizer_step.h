// The optimizer's step over what this rank owns, and the learning rate of a step.
#pragma once

#include <orthant/optimizer.h>

#include <map>
#include <vector>

#include "core/layers/parameter_store.h"
#include "core/train/measured_updates.h"
#include "core/train/whole_parameters.h"

namespace orthant {

// Learning rate of step `step` (from 0): a linear warm-up, then settings.optimizer.schedule.
double learning_rate(const Settings& settings, std::int64_t step);

class OptimizerStep {
 public:
  // Collective over the world where the optimizer wants whole parameters, or measures them. All references outlive it.
  OptimizerStep(Plan& plan, ParamStore& store, Stream& stream);

  // Forgets the early updates of the last step.
  void begin_step();

  // --- early updates, with the step and the learning rate of `at`. REQUIRES: the group's gradient is whole.
  // Enqueues the group's update without clipping, wherever the keepers hold its state, and says on which stream. A
  // gradient that is not finite by itself changes nothing. Then `finish`: the keepers spread the group.
  Stream& begin(ParamGroup& group, const HookContext& at);
  void finish(ParamGroup& group, const HookContext& at);
  // The group's update by a factor of 1, on copies (Held::trial).
  void attempt(ParamGroup& group, const HookContext& at);

  // The update of all groups that are left, in their order. factor f32[1] multiplies the gradients; finite f32[1] is 1.
  // Where they are NaN nothing changes. Waits for the factor where something was tried: what was is kept if it is 1.
  void apply(const Tensor& factor, const Tensor& finite, const HookContext& at);

 private:
  // Neighbours that are updated in one call; a parameter that is wanted whole is alone.
  struct Part {
    std::int64_t begin = 0, count = 0;  // of owned elements; count may be 0 where the parameter is wanted whole
    Treatment treatment;
    bool decay = true;
    double lr_scale = 1;
    const WholeParameter* whole = nullptr;
  };
  // Of early updates on one stream.
  struct Scalars {
    Tensor squares;      // f64 [1]
    Tensor factor, one;  // f32 [1]
  };
  enum class Progress { none, tried, updated };

  std::vector<Part> parts_of(const ParamGroup& group) const;
  const Scalars& scalars_of(Stream& home);
  UpdateStep step_with(const Tensor& factor, const Tensor& finite, const HookContext& at) const;
  // home, here and below: the stream on which the group's state lives.
  UpdateSlice slice_of(const ParamGroup& group, const Part& part, Stream& home) const;
  void update(ParamGroup& group, const UpdateStep& step, Stream& home);
  // Behind the update, and what keepers make of it. REQUIRES: the group has an average.
  void move_averages(const ParamGroup& group, const Tensor& finite, std::int64_t step, Stream& home) const;
  void update_whole(const ParamGroup& group, const Part& part, const UpdateStep& step, const Tensor& prepared);

  Plan& plan_;
  ParamStore& store_;
  Stream& stream_;
  const Optimizer& optimizer_;
  WholeParameters whole_;
  MeasuredUpdates measured_;
  std::vector<std::vector<Part>> parts_;  // by ParamGroup::id, as the next
  std::vector<Progress> progress_;
  std::map<const Stream*, Scalars> scalars_;
};

}  // namespace orthant
