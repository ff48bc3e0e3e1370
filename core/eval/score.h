// Scorer: how likely a model finds texts and answers, on one rank of this process.
//
// The forward pass is training's without dropout and noise, router and capacity included. Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/pretrained/opened_model.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/local/thread_world.h"

namespace orthant {

// Ids of one sequence; labels: what each should predict, -1 for those that do not count. As many.
struct ScoredSequence {
  std::vector<std::int32_t> token, label;
};

// -log p of all labels together, in nats, of each batch of sequences that `next` gives until it gives none. All
// sequences of a call have at most `positions` tokens; shorter ones are padded. threads: of the CPU.
// Errors: those of load_weights and of the device.
class Scorer {
 public:
  Scorer(const OpenedModel& model, std::int64_t positions, int threads, Communicator& communicator);
  ~Scorer();
  double score(std::span<const ScoredSequence> sequences);  // nats
  std::int64_t batch() const { return batch_; }             // sequences that are computed at once

 private:
  struct Rank;
  std::int64_t positions_, batch_;
  std::unique_ptr<Rank> rank_;
};

}  // namespace orthant
