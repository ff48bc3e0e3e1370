#include "apps/pretrained/one_rank_model.h"

#include "core/modules/make_device.h"
#include "core/run/saving.h"
#include "core/train/micro_batches.h"

namespace orthant {
namespace {

Config undivided(Config config, std::int64_t positions) {
  config.plugins.clear();
  if (positions > 0) {
    config.settings.data.sequence_length = positions;
  }
  config.settings.memory.limit = 0;
  config.settings.train.freeze = {"*"};  // no gradients, no optimizer state
  config.settings.optimizer = {};        // no states either, which a run may keep in 8 bits
  return config;
}

}  // namespace

OneRankModel::OneRankModel(const Config& config, const CheckpointReader& reader, std::int64_t positions, int threads,
                           Communicator& communicator)
    : config_(undivided(config, positions)),
      device_(make_device(config_.settings.run.device, threads)),
      stream_(device_->make_main_stream()),
      session_(config_) {
  session_.plan(0, &communicator, device_.get());
  model_.emplace(session_.plan(), *stream_, false);
  load_weights(reader, session_.plan(), model_->parameters(), *stream_);
  reader.release_memory();
  StepSums none;
  const DeviceBatch nothing;
  model_->merge_adapters(context(nothing, none));
}

StepContext OneRankModel::context(const DeviceBatch& batch, StepSums& sums) {
  return {.plan = session_.plan(), .stream = *stream_, .batch = batch, .sums = sums, .training = false};
}

Tensor OneRankModel::forward(const HostBatch& batch, int layers, StepSums& sums) {
  const DeviceBatch loaded = upload(batch, session_.plan(), *stream_);
  const Tensor x = forward(loaded, layers, sums);
  stream_->synchronize();  // before the batch goes
  return x;
}

Tensor OneRankModel::forward(const DeviceBatch& batch, int layers, StepSums& sums) {
  const Bundle x = model_->forward(context(batch, sums), {}, 0, layers);
  return x.empty() ? Tensor() : x.front();  // nothing behind the head
}

Tensor OneRankModel::logits(const Tensor& x) {
  StepSums none;
  const DeviceBatch nothing;
  return model_->logits(context(nothing, none), x);
}

}  // namespace orthant
