// The optimizer's step over what this rank owns, and the learning rate of a step.
#pragma once

#include <orthant/optimizer.h>

#include <vector>

#include "core/layers/parameter_store.h"
#include "core/train/whole_parameters.h"

namespace orthant {

// Learning rate of step `step` (from 0): a linear warm-up, then settings.optimizer.schedule.
double learning_rate(const Settings& settings, std::int64_t step);

class OptimizerStep {
 public:
  // Collective over the world where the optimizer wants whole parameters. All references outlive it.
  OptimizerStep(Plan& plan, ParamStore& store, Stream& stream);

  // One update, with the step and the learning rate of `at`, wherever the keepers hold a group's state; then they
  // spread it. factor f32[1] multiplies the gradients; finite f32[1] is 1. Where they are NaN nothing changes.
  void apply(const Tensor& factor, const Tensor& finite, const HookContext& at);

 private:
  // Neighbours that are updated in one call; a parameter that is wanted whole is alone.
  struct Part {
    std::int64_t begin = 0, count = 0;  // of owned elements; count may be 0 where the parameter is wanted whole
    Treatment treatment;
    bool decay = true;
    const WholeParameter* whole = nullptr;
  };
  std::vector<Part> parts_of(const ParamGroup& group) const;
  UpdateSlice slice_of(const ParamGroup& group, const Part& part) const;
  // home: the stream on which the group's state lives.
  void update(ParamGroup& group, const std::vector<Part>& parts, UpdateStep step, Stream& home);
  void update_whole(const ParamGroup& group, const Part& part, const UpdateStep& step, const Tensor& prepared);

  Plan& plan_;
  ParamStore& store_;
  Stream& stream_;
  const Optimizer& optimizer_;
  WholeParameters whole_;
  std::vector<std::vector<Part>> parts_;  // of each group
};

}  // namespace orthant
