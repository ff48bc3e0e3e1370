// Travel: which rows go to which rank, and what that moves, where ranks share a batch's tokens and runs of them share
// the experts.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/route/replay.h"

namespace orthant {

// Rank r of `ranks` has the r-th equal part of the batch's sequences. `expert_ranks` consecutive ones share the
// experts; `node_ranks` consecutive ones of these are a node.
struct ExpertLayout {
  int ranks = 1;
  int expert_ranks = 1;              // divides ranks
  int node_ranks = 0;                // divides expert_ranks, or is more; 0: all ranks are on one node
  bool two_levels = false;           // rows go within the node first, to the place of their destination, then across
  std::vector<int> place_of_expert;  // [E] among the expert_ranks; empty: equal runs in order
  std::vector<bool> recomputed;      // of a rank's micro-batches: the forward pass comes twice
  std::int64_t width = 0;            // d, elements of a row
  std::int64_t element_bytes = 4;    // of the compute type
};

struct Travel {
  std::int64_t bytes_inside = 0, bytes_between = 0;  // that leave ranks, to others of their node and to other nodes
  // [micro-batch][rank][local expert] rows that an expert computes, its own rank's places in order.
  std::vector<std::vector<std::vector<std::int64_t>>> rows;

  std::int64_t tokens = 0, top_k = 1;  // of a rank's micro-batch

  std::vector<std::int64_t> rows_of_ranks() const;
};

// Of one layer in one step, forward and backward, with the exchange of counts. Errors: ConfigError where experts,
// sequences or micro-batches do not divide.
Travel travel_of(const Decisions& made, const ExpertLayout& layout);

// "0 1 5" on a line for each rank: the experts that it holds. Errors: ConfigError naming file and line.
std::vector<int> read_placement(const std::filesystem::path& file, std::int64_t experts, int expert_ranks);

}  // namespace orthant
