// EarlyUpdates: groups are updated while the backward pass of the layers before them goes on, where the configuration
// wants it (optimizer.in_backward; Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited
// Resources", 2023) or a keeper tries updates (Holding::tries).
//
// A group's turn comes when its gradient is complete on this rank, and its sum over ranks, on a side stream, has had
// the backward pass of a layer's time. A group whose sum is there only behind finish_sums is not early: it is updated
// at the end of the step. An update on another stream than the main one has the backward pass of a layer's time too,
// before the main stream waits for it.
//
// Thread safety: one per step of a rank; not shared.
#pragma once

#include <vector>

#include "core/model/model.h"
#include "core/train/gradient_norm.h"
#include "core/train/optimizer_step.h"

namespace orthant {

class EarlyUpdates final : public BackwardListener {
 public:
  // All references outlive it. at: the end of the step.
  EarlyUpdates(const Plan& plan, GradientNorm& norm, OptimizerStep& optimizer, const HookContext& at);

  void layer_begins() override;
  void complete(ParamGroup& group) override;
  // All backward passes are enqueued: the groups that still wait.
  void finish();

 private:
  void begin(ParamGroup& group);
  void finish_begun();

  const bool in_backward_;
  GradientNorm& norm_;
  OptimizerStep& optimizer_;
  HookContext at_;
  std::vector<ParamGroup*> completed_;  // by the last layer
  std::vector<ParamGroup*> summed_;     // by the one before; their sums are on side streams
  std::vector<ParamGroup*> begun_;      // their updates run on other streams
};

}  // namespace orthant
