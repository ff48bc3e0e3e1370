// The objectives that the core brings, each in a file of its own.
#pragma once

#include <orthant/catalogue.h>
#include <orthant/objective.h>

#include <vector>

namespace orthant {

void add_objectives(Catalogue& catalogue);

std::shared_ptr<const Objective> make_cross_entropy();
std::shared_ptr<const Objective> make_distil();
std::shared_ptr<const Objective> make_pairs();
std::shared_ptr<const Objective> make_multi_token();

// Of a model: the head's, and with model.mtp_depth that of the depths behind it.
std::vector<const Objective*> objectives_of(const Settings& settings);

}  // namespace orthant
