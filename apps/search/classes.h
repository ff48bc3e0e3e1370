// The classes of the nodes of a search's tree, level by level. Internal to this folder.
#pragma once

#include <vector>

#include "apps/search/search.h"
#include "apps/search/space.h"

namespace orthant::search {

std::vector<Class> classes_of_key(const Candidate& key);
std::vector<Class> classes_of_work(const Candidate& node);  // those that its key does not have
std::vector<Class> classes_of_leaf(const Leaf& leaf);

}  // namespace orthant::search
