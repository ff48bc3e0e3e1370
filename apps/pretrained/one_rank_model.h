// OneRankModel: a checkpoint's weights in a model that no axis divides, for forward passes without training.
//
// Plugins of the configuration have no part in it, but for the kinds that they have added. Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/checkpoint/checkpoint.h"
#include "core/config/config.h"
#include "core/data/batch.h"
#include "core/model/model.h"
#include "core/session/session.h"

namespace orthant {

class OneRankModel {
 public:
  // On a device of run.device with `threads`. positions: of every batch, whatever data.sequence_length says; 0: as it
  // says. Errors: those of make_device and load_weights.
  OneRankModel(const Config& config, const CheckpointReader& reader, std::int64_t positions, int threads,
               Communicator& communicator);

  // Through the first `layers` layers of the model, the embedding counted. What the head sums is added to `sums`.
  Tensor forward(const HostBatch& batch, int layers, StepSums& sums);
  Tensor forward(const DeviceBatch& batch, int layers, StepSums& sums);
  // f32 [T, V] of x [T, d], which has been through all layers but the head.
  Tensor logits(const Tensor& x);
  int layers() const { return model_->layers(); }
  int head() const { return model_->head(); }  // the number of its layer
  const Settings& settings() const { return config_.settings; }
  const Plan& plan() { return session_.plan(); }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

 private:
  StepContext context(const DeviceBatch& batch, StepSums& sums);
  Config config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Session session_;
  std::optional<Model> model_;
};

}  // namespace orthant
