// Collectives on host values: small, rare, and outside the training step's critical path.
#pragma once

#include <orthant/group.h>
#include <orthant/ops.h>

#include <string>
#include <vector>

namespace orthant {

// Every rank's text, in rank order, on every rank.
std::vector<std::string> gather_texts(const std::string& mine, Group& group, Stream& stream);
// That a rank takes on its device for it, at most.
std::int64_t bytes_to_gather_texts(std::int64_t ranks);

// In place, over the group.
void all_reduce_values(std::vector<std::int64_t>& values, ReduceOp op, Group& group, Stream& stream);

// Before numbers of a collective are blamed for anything. Where a rank has failed, a collective that was waiting ends
// with memory of any content, and only a later call throws the reason: this one. Collective over the group.
void require_all_alive(Group& group, Stream& stream);

}  // namespace orthant
