#include "bench/tables/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace orthant::tables {
namespace {

using Maker = std::function<Table(const Places&)>;

const std::vector<std::pair<std::string, Maker>>& makers() {
  static const std::vector<std::pair<std::string, Maker>> all = {
      {"megatron", megatron_table},
      {"recompute", recompute_table},
      {"layer", layer_table},
      {"activations", [](const Places&) { return activation_table(); }},
      {"zero", [](const Places&) { return zero_table(); }},
      {"folding", folding_table},
      {"weak", weak_scaling_table},
      {"strong", strong_scaling_table},
      {"all-reduce", all_reduce_table},
      {"trees", trees_table}};
  return all;
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, maker] : makers()) {
    all.push_back(name);
  }
  return all;
}

Table make(const std::string& name, const Places& places) {
  for (const auto& [known, maker] : makers()) {
    if (known == name) {
      Table table = maker(places);
      table.name = name;
      return table;
    }
  }
  throw Error(fmt::format("there is no table '{}': the tables are {}", name, fmt::join(names(), ", ")));
}

std::string markdown_of(const Table& table) {
  std::string text = fmt::format("## {}\n\n    orthant bench tables {}\n\n", table.title, table.name);
  const auto line = [&](const std::vector<std::string>& cells) {
    text += fmt::format("| {} |\n", fmt::join(cells, " | "));
  };
  line(table.columns);
  std::vector<std::string> rule(table.columns.size(), "---:");
  rule.front() = "---";
  line(rule);
  for (const std::vector<std::string>& row : table.rows) {
    line(row);
  }
  if (!table.note.empty()) {
    text += "\n" + table.note + "\n";
  }
  return text;
}

}  // namespace orthant::tables
