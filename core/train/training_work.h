// TrainingWork: the micro-batches of one step as the executor runs them through the model.
#pragma once

#include <span>

#include "core/plan/recompute_rule.h"
#include "core/train/batch_feed.h"
#include "core/train/model_work.h"
#include "core/train/teacher.h"

namespace orthant {

// What one step needs beside its batch.
struct StepRates {
  double lr = 0;
  double capacity_share = 1;  // of moe.capacity_factor, by hooks
};

class TrainingWork : public ModelWork {
 public:
  struct Parts {
    const StepLoad& load;
    // The micro-batches where they are on the device already; empty: each goes there when its turn comes.
    std::span<const DeviceBatch> batches = {};
    StepSums& sums;
    StepRates rates;
    Teacher* teacher = nullptr;            // reads each micro-batch first, or null
    const RecomputeRule* rule = nullptr;   // or null: nothing is computed again
    BackwardListener* listener = nullptr;  // or null
  };
  // All references outlive the work.
  TrainingWork(Plan& plan, Model& model, const Parts& parts, const HookContext& finish)
      : ModelWork(plan, model, finish, parts.listener), parts_(parts) {}

 protected:
  DeviceBatch batch(int micro_batch) override;
  StepContext context(const DeviceBatch& batch, int chunk, int micro_batch) override;

 private:
  Parts parts_;
};

}  // namespace orthant
