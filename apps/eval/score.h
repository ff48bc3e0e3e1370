// Scorer: how likely a model finds texts and answers, on one rank of this process.
//
// The forward pass is training's without dropout and noise, router and capacity included. Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/pretrained/one_rank_model.h"
#include "apps/pretrained/opened_model.h"

namespace orthant {

// Ids of one sequence; labels: what each should predict, -1 for those that do not count. As many.
struct ScoredSequence {
  std::vector<std::int32_t> token, label;
  std::vector<std::int32_t> source = {};  // of a model that has a further token space, at least one
};

class Scorer {
 public:
  // positions: that the longest sequence has. threads: of the CPU.
  // Errors: those of OneRankModel.
  Scorer(const OpenedModel& model, std::int64_t positions, int threads, Communicator& communicator);

  // -log p of all labels of each sequence, in nats. Where no token's experts depend on other tokens, rows are as long
  // as the longest sequence. On the CPU a sequence's number has the same bits in any company then. What a gate draws it
  // draws by a token's place in its sequence, or in its group where sequences share one. A sequence has a token.
  std::vector<double> score(std::span<const ScoredSequence> sequences);
  // Sequences of so many tokens at most that are worth computing at once.
  std::int64_t batch(std::int64_t longest) const;
  // As batch(), of sequences that have nothing to do with each other: none may take another one's seats with an expert.
  std::int64_t strangers(std::int64_t longest) const { return sequences_a_group_ > 1 ? 1 : batch(longest); }

 private:
  // Puts what stands beside the sequences into the further space of the batch.
  void put_sources(HostBatch& batch, std::span<const ScoredSequence> sequences) const;
  std::int64_t row(std::int64_t longest) const { return group_tokens_ > 1 ? positions_ : longest; }

  const std::int64_t positions_;
  const std::int64_t group_tokens_;  // that share the seats of experts; 1: each has its own, so that rows may be short
  const std::int64_t sequences_a_group_;
  const std::int64_t source_positions_;  // of a group's sources; 0: as long as the longest is, or there are none
  OneRankModel model_;
};

}  // namespace orthant
