// The group of a dry run: it knows its members and refuses to communicate.
#pragma once

#include <orthant/group.h>

namespace orthant {

std::unique_ptr<Group> make_dry_group(std::string name, std::vector<int> members, int world_rank);

}  // namespace orthant
