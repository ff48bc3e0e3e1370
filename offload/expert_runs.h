// Where the experts of a routed group lie in its flat buffers.
#pragma once

#include <orthant/param_group.h>

#include <cstddef>
#include <vector>

namespace orthant::offload {

// Elements of one expert that follow each other, have one rate and one decay, and train or are frozen.
struct ExpertRun {
  ParamGroup::Run elements;  // of the whole group, not of what this rank owns
  std::size_t param = 0;     // of the group: the first that lies there
};

// Of each expert of the group, in its order. REQUIRES: group.experts.
std::vector<std::vector<ExpertRun>> runs_of_experts(const ParamGroup& group);

}  // namespace orthant::offload
