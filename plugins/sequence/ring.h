// Ring attention: every rank keeps its queries; keys and values travel round the ranks, and partial results are merged
// by their log-sum-exp (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Positions are dealt in zig-zag
// (AxisSpec::zigzag), so that a causal mask leaves every rank the same work (Brandon et al., "Striped Attention", 2023,
// for the reason; the zig-zag cut as in Llama 3's context parallelism).
#pragma once

#include <memory>
#include <vector>

#include <orthant/plan.h>

namespace orthant::sequence {

// By rank of a group: the places in a sequence of the rows that it holds.
using Places = std::vector<std::vector<std::int32_t>>;
// positions: in each token space. `device` may be null in a dry run.
std::unique_ptr<AttentionCore> make_ring(Group& group, std::vector<Places> positions, Device* device);

}  // namespace orthant::sequence
