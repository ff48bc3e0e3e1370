// DividedModel: a checkpoint's weights in a model that a layout divides among ranks, for forward passes over rows of
// any sequences. Every rank gives it the same rows, and gets the same logits.
//
// Collective: every rank makes the same calls in the same order. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <orthant/stepwise.h>

#include "core/checkpoint/checkpoint.h"
#include "core/config/config.h"
#include "core/model/model.h"
#include "core/session/session.h"
#include "core/train/executor.h"
#include "core/train/micro_batches.h"

namespace orthant {

// How model.kind answers in a way of its own; null: as a decoder does.
const Stepwise* stepwise_of(const Settings& settings);

class DividedModel {
 public:
  // config: of for_generation. On a device of run.device with `threads`. core: in place of attention within whole
  // sequences. Errors: those of make_device and load_weights; ConfigError for a layout that does not divide.
  DividedModel(const Config& config, const CheckpointReader& reader, int threads, Communicator& communicator,
               std::unique_ptr<AttentionCore> core);

  // model.sliding_window or 0 of each block that this rank has, in the order of a pass.
  std::vector<std::int64_t> windows();
  // A pass has a multiple of so many rows: axes may cut them.
  std::int64_t row_multiple() const { return row_multiple_; }
  // One pass through the model. seen(i, logits): behind row wanted[i], in order, on every rank; f32 [V], valid during
  // the call. batch: positions of one sequence, which this rank has all.
  using Seen = std::function<void(std::size_t, std::span<const float>)>;
  // rows: those of a kind that answers in a way of its own (stepwise); none: the batch is of whole sequences.
  void pass(const DeviceBatch& batch, StepSums& sums, std::span<const std::int64_t> wanted, const Seen& seen,
            std::span<const StepRows> rows = {});

  // Whether model.kind answers in a way of its own (orthant/stepwise.h): its sequences have a source.
  const Stepwise* stepwise() const { return stepwise_kind_; }
  // REQUIRES: stepwise. source: one sequence, with what stands in its further spaces.
  void begin(int sequence, const HostBatch& source);
  void forget(int sequence);
  // A batch of the host's, with all of its spaces.
  DeviceBatch on_device(const HostBatch& batch) { return upload(batch, session_.plan(), *stream_); }
  const Settings& settings() const { return config_.settings; }

  int ranks() const { return world_->size(); }
  int rank() const { return world_->rank(); }
  // Of the ranks with the same layers this is the one that is asked what their routers chose.
  bool speaks_for_stage() const { return stage_members_.front() == rank(); }
  // What rank 0 gave, on every rank.
  bool first_says(bool value);
  std::vector<std::int64_t> sum_over_ranks(std::vector<std::int64_t> values);

  Stream& stream() { return *stream_; }

 private:
  // f32 [count, V] behind rows of n [T, d]; n is undefined where another stage has the head.
  std::vector<float> logits(const StepContext& ctx, const Tensor& n, std::span<const std::int64_t> rows);

  Config config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Session session_;
  std::optional<Model> model_;
  const Stepwise* stepwise_kind_ = nullptr;
  std::unique_ptr<StepwiseModel> growing_;  // of that kind
  std::optional<Executor> executor_;
  std::vector<Instr> program_;
  std::vector<int> stage_members_;
  Group* world_ = nullptr;
  std::int64_t row_multiple_ = 1;
  // The rank whose logits all get, the ranks that have the columns of the vocabulary with it, and where theirs begin.
  int root_ = 0;
  Group* slices_ = nullptr;  // of this rank; null: every rank with the head has all columns
  std::vector<std::int64_t> first_column_;
};

}  // namespace orthant
