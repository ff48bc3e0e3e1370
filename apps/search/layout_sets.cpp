#include "apps/search/layout_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/search/axis_names.h"
#include "core/config/print.h"
#include "core/config/value_text.h"

namespace orthant::search {
namespace {

using Keys = std::vector<std::pair<std::string, Value>>;

bool in_levels(const Candidate& c) {
  return c.travel == Travel::two_levels || c.travel == Travel::two_levels_in_parts;
}
bool in_parts(const Candidate& c) {
  return c.travel == Travel::in_parts || c.travel == Travel::two_levels_in_parts;
}

// The keys that a layout decides, table by table.
std::vector<std::pair<std::string, Keys>> tables_of(const Problem& problem, const Candidate& c) {
  const auto number = [](std::int64_t value) { return Value(value); };
  const auto text = [](const char* value) { return Value(std::string(value)); };
  const Keys pipeline = {{"size", number(c.pipeline)},
                         {"schedule", text(c.pipeline > 1 ? name_of(c.schedule) : "1f1b")},
                         {"chunks", number(c.chunks)}};
  const Keys data = {{"size", number(c.data)},
                     {"zero", number(c.zero)},
                     {"shard_ranks", number(0)},
                     {"layered", Value(c.schedule == Course::layered)}};
  const Keys sequence = {{"size", number(c.sequence)}, {"method", text(c.ulysses ? "ulysses" : "ring")}};
  const Keys tensor = {{"size", number(c.tensor)},
                       {"sequence_parallel", Value(c.sequence_parallel)},
                       {"experts", text(c.folded ? "fold" : "split")}};
  std::vector<std::pair<std::string, Keys>> tables;
  const auto& order = all_orders().at(c.order);
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    switch (*axis) {
      case cost::Axis::pipeline: tables.emplace_back(named::pipeline, pipeline); break;
      case cost::Axis::data: tables.emplace_back(named::data, data); break;
      case cost::Axis::context: tables.emplace_back(named::sequence, sequence); break;
      case cost::Axis::tensor: tables.emplace_back(named::tensor, tensor); break;
    }
  }
  if (problem.model.experts > 0) {
    tables.emplace_back(named::expert, Keys{{"size", number(c.expert)},
                                            {"dispatch", text(in_levels(c) ? "hierarchical" : "all_to_all")},
                                            {"node_ranks", number(in_levels(c) ? places_of(problem, c)[4] : 0)},
                                            {"chunks", number(in_parts(c) ? 2 : 1)}});
  }
  if (c.host_states) {
    tables.emplace_back(named::offload, Keys{{"states", text("host")}});
  }
  return tables;
}

bool loads(const Config& config, const std::string& plugin) {
  return std::any_of(config.plugins.begin(), config.plugins.end(),
                     [&](const PluginRequest& one) { return one.name == plugin; });
}

bool has_size_one(const Keys& keys) {
  return std::get<std::int64_t>(keys.front().second) == 1;
}

// An axis of one rank needs no table, unless it does something else.
bool wanted(const std::string& plugin, const Keys& keys, const Candidate& c) {
  return plugin == named::offload || !has_size_one(keys) ||
         (plugin == named::data && (c.zero > 0 || c.schedule == Course::layered));
}

Table changed(const Table& table, const Keys& keys) {
  std::map<std::string, Table::Entry> entries = table.entries();
  for (const auto& [name, value] : keys) {
    entries[name] = {value, "the search"};
  }
  return Table(table.path(), std::move(entries));
}

}  // namespace

std::vector<std::string> sets_of(const Problem& problem, const Candidate& candidate, const Config& config) {
  std::vector<std::string> sets = {fmt::format("batch.micro_batch={}", candidate.micro_batch),
                                   fmt::format("memory.recompute=\"{}\"", name_of(candidate.recompute)),
                                   "memory.keep_micro_batches=0"};
  for (const auto& [plugin, keys] : tables_of(problem, candidate)) {
    if (wanted(plugin, keys, candidate) || loads(config, plugin)) {
      for (const auto& [name, value] : keys) {
        sets.push_back(fmt::format("plugins.{}.{}={}", plugin, name, toml_text(value)));
      }
    }
  }
  return sets;
}

std::string toml_of(const Problem& problem, const Candidate& candidate, const Config& config,
                    const std::vector<std::string>& heading) {
  Config whole = config;
  for (Table& table : whole.tables) {
    if (table.path() == "batch") {
      table = changed(table, {{"micro_batch", Value(candidate.micro_batch)}});
    } else if (table.path() == "memory") {
      table = changed(table, {{"recompute", Value(std::string(name_of(candidate.recompute)))},
                              {"keep_micro_batches", Value(std::int64_t{0})}});
    }
  }
  // Axes first, in the layout's order; other plugins as they were.
  std::vector<PluginRequest> plugins;
  for (const auto& [plugin, keys] : tables_of(problem, candidate)) {
    const std::string name = plugin;
    const auto written = std::find_if(config.plugins.begin(), config.plugins.end(),
                                      [&](const PluginRequest& one) { return one.name == name; });
    std::erase_if(whole.plugins, [&](const PluginRequest& one) { return one.name == name; });
    if (wanted(plugin, keys, candidate)) {
      PluginRequest request = written == config.plugins.end() ? PluginRequest() : *written;
      request.name = name;
      request.table = changed(written == config.plugins.end() ? Table("plugins." + name, {}) : written->table, keys);
      plugins.push_back(std::move(request));
    } else if (name == named::offload && written != config.plugins.end()) {
      plugins.push_back(*written);
    }
  }
  plugins.insert(plugins.end(), whole.plugins.begin(), whole.plugins.end());
  whole.plugins = std::move(plugins);
  std::string text;
  for (const std::string& line : heading) {
    text += line.empty() ? "#\n" : "# " + line + "\n";
  }
  return text + "\n" + resolved_toml(whole);
}

}  // namespace orthant::search
