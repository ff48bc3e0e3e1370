#include "apps/search/recorded_load.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/base/text_file.h"

namespace orthant::search {

cost::Loads recorded_loads(const std::filesystem::path& run, std::int64_t experts) {
  const std::filesystem::path file = std::filesystem::is_directory(run) ? run / "metrics.jsonl" : run;
  const auto text = read_text_file(file);
  if (!text) {
    throw ConfigError(fmt::format("--routing {}: there is no such file; give the folder of a run", file.string()));
  }
  cost::Loads loads;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json step = nlohmann::json::parse(line, nullptr, false);  // the last line may be cut short
    const auto layers = step.is_object() ? step.find("expert_tokens") : step.end();
    if (!step.is_object() || layers == step.end() || !layers->is_object() || layers->empty()) {
      continue;
    }
    std::vector<std::pair<int, std::vector<double>>> numbered;
    for (const auto& [number, layer] : layers->items()) {
      if (!layer.is_array() || static_cast<std::int64_t>(layer.size()) != experts ||
          !std::all_of(layer.begin(), layer.end(), [](const auto& n) { return n.is_number_integer(); })) {
        throw ConfigError(
            fmt::format("--routing {}: it is of another model than this one of {} experts", file.string(), experts));
      }
      numbered.emplace_back(std::atoi(number.c_str()), layer.get<std::vector<double>>());
    }
    std::sort(numbered.begin(), numbered.end());  // names of layers are texts: "10" stands before "2"
    std::vector<std::vector<double>>& of_step = loads.emplace_back();
    for (auto& [number, load] : numbered) {
      of_step.push_back(std::move(load));
    }
  }
  if (experts == 0 || loads.empty()) {
    throw ConfigError(fmt::format("--routing {}: no line of it has expert_tokens{}", file.string(),
                                  experts == 0 ? ", and this model has no experts" : ""));
  }
  std::reverse(loads.begin(), loads.end());
  loads.resize(std::min(loads.size(), most_steps));
  return loads;
}

}  // namespace orthant::search
