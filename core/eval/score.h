// Scorer: how likely a model finds texts and answers, on one rank of this process.
//
// The forward pass is training's without dropout and noise, router and capacity included. Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/pretrained/one_rank_model.h"
#include "core/pretrained/opened_model.h"

namespace orthant {

// Ids of one sequence; labels: what each should predict, -1 for those that do not count. As many.
struct ScoredSequence {
  std::vector<std::int32_t> token, label;
};

class Scorer {
 public:
  // positions: that the longest sequence has; shorter ones are padded. threads: of the CPU.
  // Errors: those of OneRankModel.
  Scorer(const OpenedModel& model, std::int64_t positions, int threads, Communicator& communicator);

  // -log p of all labels of the sequences together, in nats.
  double score(std::span<const ScoredSequence> sequences);
  std::int64_t batch() const { return batch_; }  // sequences that are worth computing at once

 private:
  std::int64_t positions_, batch_;
  OneRankModel model_;
  StepSums sums_;
};

}  // namespace orthant
