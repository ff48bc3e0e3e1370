// What each rank is started with.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "parallel/launch/supervisor.h"

namespace orthant {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Of the plan's rank number `index`. segment: the descriptor of the shared one, empty where there is none; columns: of
// the terminal that shows rank 0's progress, or 0.
Variables rank_variables(const LaunchPlan& plan, int index, const std::string& segment, int columns);

// This process's environment, NAME=value, with `variables` instead of what it has under the same names.
std::vector<std::string> merged_environment(const Variables& variables);

std::filesystem::path log_path(const LaunchPlan& plan, int rank);

}  // namespace orthant
