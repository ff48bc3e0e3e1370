#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "bench/study/point_run.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view rest_of_a_step = "other";
constexpr std::array<std::string_view, 7> part_names = {
    "products below it", "routing and permutation", "memory-bound operations",
    "optimizer",         "exchange and waiting",    "between operations",
    rest_of_a_step};

// The part of a step that a cause of bench/command/causes.h belongs to.
std::string_view part_of(std::string_view cause) {
  struct Rule {
    std::string_view begins, part;
  };
  static constexpr std::array<Rule, 13> rules = {{
      {"padding", "products below it"},
      {"small", "products below it"},
      {"attention", "products below it"},
      {"products", "products below it"},
      {"routing", "routing and permutation"},
      {"memory", "memory-bound operations"},
      {"optimizer", "optimizer"},
      {"imbalance", "exchange and waiting"},
      {"ranks that", "exchange and waiting"},
      {"exposed", "exchange and waiting"},
      {"pipeline bubbles", "exchange and waiting"},
      {"launches", "between operations"},
      {"loading", "between operations"},
  }};
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return cause.starts_with(r.begins); });
  return rule == rules.end() ? rest_of_a_step : rule->part;
}

}  // namespace

Json costs_of(const std::vector<std::string>& printed) {
  std::vector<double> floors, passes;
  std::map<std::string, std::vector<double>> parts;
  Json causes;
  for (const std::string& text : printed) {
    const std::size_t begin = text.find("\n{") == std::string::npos ? text.find('{') : text.find("\n{") + 1;
    const Json why = Json::parse(begin == std::string::npos ? "" : text.substr(begin), nullptr, false);
    require(why.is_object() && why.contains("causes"), "bench step --why --json printed no causes:\n{}", text);
    std::map<std::string, double> seconds;
    for (const Json& cause : why["causes"]) {
      seconds[std::string(part_of(cause["name"].get<std::string>()))] += cause["seconds"].get<double>();
    }
    floors.push_back(why["floor_seconds"]);
    passes.push_back(why["step_seconds"].get<double>() - seconds["optimizer"]);
    for (std::string_view name : part_names) {
      parts[std::string(name)].push_back(seconds[std::string(name)]);  // 0 where the run had no such cause
    }
    causes = why["causes"];
  }
  if (printed.empty()) {
    return Json::object();
  }
  Json all = {{"products at full rate", median(floors)}};
  for (std::string_view name : part_names) {
    all[std::string(name)] = std::max(0.0, median(parts[std::string(name)]));
  }
  return {{"forward_backward_seconds", median(passes)},
          {"floor_seconds", median(floors)},
          {"parts", all},
          {"causes", causes}};
}

}  // namespace orthant
