// Ulysses: outside the attention core a rank holds some positions of every head, inside it some heads of every position
// (Jacobs et al., "DeepSpeed Ulysses", 2023). One all-to-all on each of q, k, v and the result.
#pragma once

#include <memory>
#include <vector>

#include <orthant/plan.h>

namespace orthant::sequence {

// slices: positions of each sequence that a rank holds outside the core, in each token space. T = sequences * slice.
// positions -> heads: forward [T, columns] -> [T ranks, columns / ranks].
std::unique_ptr<Boundary> make_to_heads(Group& group, std::vector<std::int64_t> slices);
// heads -> positions, the inverse, which is also the adjoint.
std::unique_ptr<Boundary> make_to_positions(Group& group, std::vector<std::int64_t> slices);

}  // namespace orthant::sequence
