// ModelWork: the model's pieces of one stage as the executor runs them.
#pragma once

#include <map>
#include <vector>

#include "core/model/model.h"
#include "core/train/executor.h"

namespace orthant {

// This stage's passes forward over that many micro-batches, without backward.
std::vector<Instr> forward_passes(const Plan& plan, int micro_batches);

class ModelWork : public StageWork {
 public:
  // All references outlive the work. `finish`: where the step stands when all backward passes are enqueued.
  // `listener`: of the backward passes, or null.
  ModelWork(Plan& plan, Model& model, const HookContext& finish, BackwardListener* listener = nullptr)
      : plan_(plan), model_(model), stream_(finish.stream), finish_(finish), listener_(listener) {}

  void load(int micro_batch) override { loaded_[micro_batch] = batch(micro_batch); }
  void unload(int micro_batch) override { loaded_.erase(micro_batch); }
  Bundle forward(int chunk, int micro_batch, Bundle x) override;
  Bundle backward(int chunk, int micro_batch, Bundle dy, bool last) override;
  void finish_grads() override;

 protected:
  // A micro-batch is on the device from here to its last use.
  virtual DeviceBatch batch(int micro_batch) = 0;
  virtual StepContext context(const DeviceBatch& batch, int chunk, int micro_batch) = 0;

  const DeviceBatch& batch_of(int micro_batch) const { return loaded_.at(micro_batch); }
  StepContext context_of(int chunk, int micro_batch) { return context(batch_of(micro_batch), chunk, micro_batch); }

  Plan& plan_;
  Model& model_;
  Stream& stream_;

 private:
  HookContext finish_;
  BackwardListener* listener_;
  std::map<int, DeviceBatch> loaded_;
};

}  // namespace orthant
