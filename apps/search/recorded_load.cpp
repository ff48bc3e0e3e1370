#include "apps/search/recorded_load.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <vector>

#include "core/base/text_file.h"

namespace orthant::search {
namespace {

std::vector<double> load_of(const nlohmann::json& layer, double capacity_factor) {
  auto load = layer.get<std::vector<double>>();
  const double mean = std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
  for (double& expert : load) {
    expert = capacity_factor > 0 ? std::min(expert, capacity_factor * mean) : expert;
  }
  return load;
}

}  // namespace

cost::Routing recorded_load(const std::filesystem::path& run, std::int64_t experts, double capacity_factor) {
  const std::filesystem::path file = std::filesystem::is_directory(run) ? run / "metrics.jsonl" : run;
  const auto text = read_text_file(file);
  if (!text) {
    throw ConfigError(fmt::format("--routing {}: there is no such file; give the folder of a run", file.string()));
  }
  cost::Routing routing;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json step = nlohmann::json::parse(line, nullptr, false);  // the last line may be cut short
    const auto layers = step.is_object() ? step.find("expert_tokens") : step.end();
    if (!step.is_object() || layers == step.end() || !layers->is_object()) {
      continue;
    }
    for (const auto& layer : *layers) {
      if (!layer.is_array() || static_cast<std::int64_t>(layer.size()) != experts ||
          !std::all_of(layer.begin(), layer.end(), [](const auto& n) { return n.is_number_integer(); })) {
        throw ConfigError(
            fmt::format("--routing {}: it is of another model than this one of {} experts", file.string(), experts));
      }
      routing.load.push_back(load_of(layer, capacity_factor));
    }
  }
  if (experts == 0 || routing.load.empty()) {
    throw ConfigError(fmt::format("--routing {}: no line of it has expert_tokens{}", file.string(),
                                  experts == 0 ? ", and this model has no experts" : ""));
  }
  return routing;
}

}  // namespace orthant::search
