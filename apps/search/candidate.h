// One layout of a search: what varies, as small numbers.
//
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/search/problem.h"

namespace orthant::search {

struct Candidate {
  int tensor = 1, sequence = 1, pipeline = 1, data = 1, expert = 1;
  int chunks = 1;  // of a stage
  std::int64_t micro_batch = 1;
  std::uint8_t zero = 0;
  std::uint8_t order = 0;  // of all_orders()
  bool sequence_parallel = false, folded = false, ulysses = false, host_states = false;
  Course schedule = Course::one_forward_one_backward;
  Travel travel = Travel::at_once;
  cost::Recompute recompute = cost::Recompute::none;  // none, activation or full

  auto operator<=>(const Candidate&) const = default;
};

// The orders of the axes, each innermost first. The first is tensor, context, data, pipeline.
const std::vector<std::array<cost::Axis, 4>>& all_orders();

// REQUIRES: axes that multiply to the ranks; a pipeline and chunks that the chain's layers fill.
cost::Layout layout_of(const Problem& problem, const Candidate& candidate);
// The same, but nobody has been asked how layers are cut. Safe to call from several threads.
cost::Layout uncut_layout_of(const Problem& problem, const Candidate& candidate);

// Empty: the program takes it. Else what it asks for that is not so, in one sentence.
std::string refusal(const Problem& problem, const Candidate& candidate);
// The part of it that schedule, chunks, ZeRO stage and the place of states decide, with pipeline, data, sequence and
// micro-batch.
std::string refused_leaf(const Problem& problem, const Candidate& candidate);

// How many ranks of each group share a node. Layouts whose axes differ only in their order and that have the same
// places take as long.
using Places = std::array<int, 6>;
Places places_of(const Problem& problem, const Candidate& candidate);

// "pipeline 4 (interleaved, 2 chunks), data 8 (zero 1), tensor 2 (sequence parallel); expert 8; micro-batch 2; ..."
std::string text_of(const Candidate& candidate);

const char* name_of(Course schedule);
const char* name_of(Travel travel);
const char* name_of(cost::Recompute recompute);  // as memory.recompute has it

}  // namespace orthant::search
