// ModelWork: the model's pieces of one stage as the executor runs them.
#pragma once

#include <functional>
#include <map>

#include "core/model/model.h"
#include "core/train/executor.h"

namespace orthant {

class ModelWork : public StageWork {
 public:
  using Load = std::function<DeviceBatch(int micro_batch)>;
  using Context = std::function<StepContext(const DeviceBatch&, int chunk, int micro_batch)>;
  // A micro-batch is on the device from its load to its last use. All references outlive the work. `finish`: where the
  // step stands when all backward passes are enqueued. `listener`: of the backward passes, or null.
  ModelWork(Plan& plan, Model& model, Load load, Context context, const HookContext& finish,
            BackwardListener* listener = nullptr)
      : plan_(plan),
        model_(model),
        stream_(finish.stream),
        finish_(finish),
        load_(std::move(load)),
        context_(std::move(context)),
        listener_(listener) {}

  void load(int micro_batch) override { loaded_[micro_batch] = load_(micro_batch); }
  void unload(int micro_batch) override { loaded_.erase(micro_batch); }
  Bundle forward(int chunk, int micro_batch, Bundle x) override;
  Bundle backward(int chunk, int micro_batch, Bundle dy, bool last) override;
  void finish_grads() override;

 protected:
  const DeviceBatch& batch_of(int micro_batch) const { return loaded_.at(micro_batch); }
  StepContext context(int chunk, int micro_batch) const {
    return context_(loaded_.at(micro_batch), chunk, micro_batch);
  }

  Plan& plan_;
  Model& model_;
  Stream& stream_;

 private:
  HookContext finish_;
  Load load_;
  Context context_;
  BackwardListener* listener_;
  std::map<int, DeviceBatch> loaded_;
};

}  // namespace orthant
