// The groups of ranks that heads and routers meet in: declared here, made in one place (Model), found by layers.
#pragma once

#include <orthant/plan.h>

#include <vector>

namespace orthant {

// All of them, as the caller's rank sees them, in the order in which they are made. over_sequences: the objective sums
// over sequences (Objective::over_sequences).
std::vector<GroupSpec> groups_of_layers(const Plan& plan, bool over_sequences);

// Each is null where no axis divides what it is of. Collective over the world the first time.
Group* vocabulary_group(Plan& plan);  // the ranks that hold the other slices of the vocabulary
Group* sequence_group(Plan& plan);    // the ranks that hold the other parts of the same sequences in the head
Group* routing_group(Plan& plan);     // the ranks that hold parts of the sequences that a router routes as a whole
Group* balance_group(Plan& plan);     // the ranks of the stage, where the balance loss knows their load

}  // namespace orthant
