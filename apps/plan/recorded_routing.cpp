#include "apps/plan/recorded_routing.h"

#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/text_file.h"

namespace orthant {
namespace {

double largest_share(const std::vector<std::int64_t>& tokens, int ranks) {
  const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  const auto each = static_cast<std::ptrdiff_t>(tokens.size()) / ranks;
  std::int64_t most = 0;
  for (auto first = tokens.begin(); first != tokens.end(); first += each) {
    most = std::max(most, std::accumulate(first, first + each, std::int64_t{0}));
  }
  return all == 0 ? 0 : static_cast<double>(most) / static_cast<double>(all);
}

// 0: this line has none.
double share_in(const nlohmann::json& line, std::int64_t experts, int ranks, const std::string& file) {
  double share = 0;
  const auto layers = line.is_object() ? line.find("expert_tokens") : line.end();
  if (layers == line.end() || !layers->is_object()) {
    return share;
  }
  for (const auto& layer : *layers) {
    if (!layer.is_array() || static_cast<std::int64_t>(layer.size()) != experts ||
        !std::all_of(layer.begin(), layer.end(), [](const auto& n) { return n.is_number_integer(); })) {
      throw ConfigError(fmt::format("--routing {}: it is of another model than this one of {} experts", file, experts));
    }
    share = std::max(share, largest_share(layer.get<std::vector<std::int64_t>>(), ranks));
  }
  return share;
}

}  // namespace

double recorded_share(const std::filesystem::path& run, std::int64_t experts, int ranks) {
  const std::filesystem::path file = std::filesystem::is_directory(run) ? run / "metrics.jsonl" : run;
  const auto text = read_text_file(file);
  if (!text) {
    throw ConfigError(fmt::format("--routing {}: there is no such file; give the folder of a run", file.string()));
  }
  double share = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    // The last line may be cut short where a run was killed.
    share = std::max(share, share_in(nlohmann::json::parse(line, nullptr, false), experts, ranks, file.string()));
  }
  if (experts == 0 || share == 0) {
    throw ConfigError(fmt::format("--routing {}: no line of it has expert_tokens{}", file.string(),
                                  experts == 0 ? ", and this model has no experts" : ""));
  }
  return share;
}

}  // namespace orthant
