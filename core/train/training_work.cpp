#include "core/train/training_work.h"

#include <algorithm>

#include "core/train/micro_batches.h"

namespace orthant {

DeviceBatch TrainingWork::batch(int micro_batch) {
  const std::size_t number = static_cast<std::size_t>(micro_batch);
  if (parts_.teacher != nullptr) {
    parts_.teacher->read(micro_batch);
  }
  return parts_.batches.empty() ? upload(parts_.load.micro_batches[number], plan_, stream_) : parts_.batches[number];
}

StepContext TrainingWork::context(const DeviceBatch& batch, int chunk, int micro_batch) {
  const MoeSettings& moe = plan_.settings().moe;
  const StepLoad& load = parts_.load;
  const double valid = static_cast<double>(std::max<std::int64_t>(load.valid.front(), 1));
  return {.plan = plan_,
          .stream = stream_,
          .batch = batch,
          .sums = parts_.sums,
          .step = static_cast<std::uint32_t>(load.step),
          .lr = parts_.rates.lr,
          .capacity_share = parts_.rates.capacity_share,
          .micro_batch = micro_batch,
          .recompute = parts_.rule == nullptr ? Recompute::none : parts_.rule->of(chunk, micro_batch),
          .training = true,
          .loss_scale = static_cast<float>(1.0 / static_cast<double>(load.counts.front())),
          .aux_scale = static_cast<float>(moe.aux_loss / valid),
          .z_scale = static_cast<float>(moe.z_loss / valid),
          .valid = load.valid};
}

}  // namespace orthant
