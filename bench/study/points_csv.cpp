#include "bench/study/points_csv.h"

#include <array>
#include <string_view>

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

std::string cell(const Json& value) {
  if (value.is_null()) {
    return "";
  }
  if (!value.is_string()) {
    return value.dump();
  }
  std::string quoted = "\"";
  for (char c : value.get<std::string>()) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

}  // namespace

std::string points_csv(const Json& card) {
  // Where a column stands in a point, as a JSON pointer.
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 22> columns = {{
      {"id", "/id"},
      {"size", "/size"},
      {"experts", "/experts"},
      {"top_k", "/top_k"},
      {"granularity", "/granularity"},
      {"capacity_factor", "/capacity_factor"},
      {"layout", "/layout"},
      {"ranks", "/ranks"},
      {"seed", "/seed"},
      {"total_parameters", "/parameters/total"},
      {"active_parameters", "/parameters/active"},
      {"model_flops_per_token", "/flops_per_token/model"},
      {"router_flops_per_token", "/flops_per_token/router"},
      {"dispatch_bytes_per_token", "/dispatch_bytes_per_token"},
      {"steps", "/steps"},
      {"tokens", "/tokens"},
      {"status", "/status"},
      {"validation_loss", "/result/validation_loss"},
      {"step_seconds", "/result/step_seconds"},
      {"peak_bytes", "/result/peak_bytes"},
      {"drop_rate", "/result/drop_rate"},
      {"lr_factor", "/lr_factor"},
  }};
  std::string text;
  for (const auto& [name, place] : columns) {
    text += (text.empty() ? "" : ",") + std::string(name);
  }
  text += "\n";
  for (const Json& point : card.at("points")) {
    std::string line;
    for (const auto& [name, place] : columns) {
      const Json::json_pointer pointer{std::string(place)};
      line += (&name == &columns.front().first ? "" : ",") + (point.contains(pointer) ? cell(point.at(pointer)) : "");
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace orthant
