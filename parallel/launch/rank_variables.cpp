#include "parallel/launch/rank_variables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace orthant {

Variables rank_variables(const LaunchPlan& plan, int index, const std::string& segment, int columns) {
  Variables variables = plan.environment;
  variables.emplace_back("ORTHANT_RANK", std::to_string(plan.first_rank + index));
  variables.emplace_back("ORTHANT_WORLD_SIZE", std::to_string(plan.world_size));
  variables.emplace_back("ORTHANT_LOCAL_RANK", std::to_string(plan.first_local_rank + index));
  variables.emplace_back("ORTHANT_RUN_DIR", plan.run_directory.string());
  if (!segment.empty()) {
    variables.emplace_back("ORTHANT_LOCAL_FD", segment);
  }
  if (columns > 0 && plan.first_rank + index == 0) {
    variables.emplace_back("ORTHANT_TTY", std::to_string(columns));
  }
  return variables;
}

// The launcher's environment with ours instead of what it has under the same names.
std::vector<std::string> merged_environment(const Variables& variables) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool stale = name == "ORTHANT_LOCAL_FD" || name == "ORTHANT_TTY" || name == "ORTHANT_SECRET_FILE";
    const bool ours = std::any_of(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
    if (!ours && !stale) {
      merged.emplace_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    merged.push_back(name + "=" + value);
  }
  return merged;
}

namespace {

// Of now: the folder may be renamed while its files are written.
std::filesystem::path log_folder(const LaunchPlan& plan) {
  const std::filesystem::path starting = plan.run_directory / plan.starting_logs;
  std::error_code ignored;
  const bool waits = !plan.starting_logs.empty() && std::filesystem::exists(starting, ignored);
  return waits ? starting : plan.run_directory / "logs";
}

}  // namespace

std::filesystem::path log_path(const LaunchPlan& plan, int rank) {
  return log_folder(plan) / fmt::format("rank_{}.log", rank);
}

}  // namespace orthant
