// What a run with experts tells of its router.
#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "apps/report/figures.h"
#include "apps/report/read_json.h"
#include "apps/report/run_figures.h"

namespace orthant::report {
namespace {

constexpr std::size_t most_columns = 48;  // of a heat map
constexpr std::size_t most_maps = 16;     // layers shown of a deep model

// Keys are the blocks' numbers: in their order.
std::vector<std::string> blocks_of(const RunData& run, const char* key) {
  std::map<std::int64_t, std::string> blocks;
  for (const RunLine& line : run.lines) {
    const Json& layers = object_at(line.json, key, line.where);
    if (layers.is_null()) {
      continue;
    }
    for (const auto& [block, value] : layers.items()) {
      blocks.emplace(std::strtoll(block.c_str(), nullptr, 10), block);
    }
  }
  std::vector<std::string> names;
  for (const auto& [number, name] : blocks) {
    names.push_back(name);
  }
  return names;
}

std::vector<std::string> some_of(const std::vector<std::string>& all, std::size_t most) {
  std::vector<std::string> some;
  const std::size_t count = std::min(all.size(), most);
  for (std::size_t i = 0; i < count; ++i) {
    some.push_back(all[count < 2 ? 0 : i * (all.size() - 1) / (count - 1)]);
  }
  return some;
}

std::vector<double> numbers_of(const Json& list, const std::string& where) {
  std::vector<double> numbers;
  for (const Json& entry : list) {
    numbers.push_back(number_of(entry, where).value_or(0));
  }
  return numbers;
}

// Loads of a block's experts over their mean, summed over the lines of a column.
HeatMap load_map(const std::vector<const RunLine*>& lines, const std::string& block, std::size_t columns) {
  HeatMap map{"layer " + block, {}};
  for (std::size_t column = 0; column < columns; ++column) {
    std::vector<double> sum;
    for (std::size_t i = column * lines.size() / columns; i < (column + 1) * lines.size() / columns; ++i) {
      const std::string where = lines[i]->where + ": 'expert_tokens." + block + "'";
      const Json& tokens = list_at(object_at(lines[i]->json, "expert_tokens", where), block.c_str(), where);
      const std::vector<double> counts = tokens.is_null() ? std::vector<double>() : numbers_of(tokens, where);
      sum.resize(std::max(sum.size(), counts.size()), 0);
      for (std::size_t expert = 0; expert < counts.size(); ++expert) {
        sum[expert] += counts[expert];
      }
    }
    double total = 0;
    for (const double count : sum) {
      total += count;
    }
    if (map.values.size() < sum.size()) {
      map.values.resize(sum.size(), std::vector<double>(columns, std::numeric_limits<double>::quiet_NaN()));
    }
    for (std::size_t expert = 0; expert < sum.size() && total > 0; ++expert) {
      map.values[expert][column] = sum[expert] * static_cast<double>(sum.size()) / total;
    }
  }
  return map;
}

void add_load_map(const RunData& run, Section& section) {
  std::vector<const RunLine*> lines;
  for (const RunLine& line : run.lines) {
    if (!object_at(line.json, "expert_tokens", line.where).is_null()) {
      lines.push_back(&line);
    }
  }
  const std::vector<std::string> blocks = blocks_of(run, "expert_tokens"), shown = some_of(blocks, most_maps);
  if (lines.empty() || shown.empty()) {
    return;
  }
  const std::size_t columns = std::min(lines.size(), most_columns);
  HeatMaps maps{"Load of the experts, " + run.name,
                "A row an expert, a column a logged step: tokens that the expert computed over the mean of its layer.",
                "expert",
                "optimizer steps",
                {},
                {},
                "load / mean"};
  for (std::size_t column = 0; column < columns; ++column) {
    maps.columns.push_back(std::to_string(lines[(column + 1) * lines.size() / columns - 1]->step));
  }
  for (const std::string& block : shown) {
    maps.maps.push_back(load_map(lines, block, columns));
  }
  std::string caption = "Tokens that each expert computed (after capacity) over the mean of its layer.";
  if (columns < lines.size()) {
    caption +=
        fmt::format(" {} logged steps in {} columns: each is a sum, named by its last step.", lines.size(), columns);
  }
  if (shown.size() < blocks.size()) {
    caption += fmt::format(" {} of {} layers are shown.", shown.size(), blocks.size());
  }
  section.figure(figure_of(maps, "load-" + run.id, caption, run.command()));
}

// A number of `routing`, a line a layer. `suffix` names the series where there are several numbers: ", loss".
struct Shown {
  const char* key;
  const char* suffix;
  Dash line;
};

void add_by_layer(const RunData& run, const std::vector<std::string>& blocks, Plot plot,
                  const std::vector<Shown>& shown, const std::string& id, const std::string& caption,
                  Section& section) {
  plot.x = {.label = "optimizer steps", .from_zero = true};
  plot.title += ", " + run.name;
  for (const Shown& what : shown) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Series series{.name = "layer " + blocks[i] + what.suffix,
                    .points = {},
                    .colour = ordered_colour(i, blocks.size()),
                    .line = what.line};
      for (const RunLine& line : run.lines) {
        const Json& routing = object_at(line.json, "routing", line.where);
        const Json& layer = routing.is_null() ? routing : object_at(routing, blocks[i].c_str(), line.where);
        const auto value = layer.is_null() ? std::nullopt : number_at(layer, what.key, line.where + ": 'routing'");
        if (value) {
          series.points.push_back({static_cast<double>(line.step), *value});
        }
      }
      series.points = thinned(series.points, most_line_points);
      series.marker = series.points.size() < 12 ? distinct_marker(i) : Marker::none;
      if (!series.points.empty()) {
        plot.series.push_back(series);
      }
    }
  }
  // A colour a layer, a kind of line a number.
  if (shown.size() > 1) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      plot.keys.push_back({.name = "layer " + blocks[i], .points = {}, .colour = ordered_colour(i, blocks.size())});
    }
    for (const Shown& what : shown) {
      plot.keys.push_back({.name = what.suffix + 2, .points = {}, .colour = "ink", .line = what.line});
    }
  }
  if (has_points(plot)) {
    section.figure(figure_of(plot, id + "-" + run.id, caption, run.command()));
  }
}

// The last line that has pairs: how often two experts were chosen together, over the mean of all pairs.
void add_pairs(const RunData& run, const std::vector<std::string>& blocks, Section& section) {
  HeatMaps maps{"Experts chosen together, " + run.name,
                "A row an expert, a column another: how often one token chose both, over the mean of all pairs.",
                "expert",
                "expert",
                {},
                {},
                "pairs / mean"};
  for (const std::string& block : some_of(blocks, 4)) {
    for (auto line = run.lines.rbegin(); line != run.lines.rend(); ++line) {
      const std::string where = line->where + ": 'routing." + block + ".coactivation'";
      const Json& routing = object_at(line->json, "routing", where);
      const Json& layer = routing.is_null() ? routing : object_at(routing, block.c_str(), where);
      const Json& pairs = layer.is_null() ? layer : list_at(layer, "coactivation", where);
      if (pairs.is_null() || pairs.empty()) {
        continue;
      }
      HeatMap map{fmt::format("layer {}, step {}", block, line->step), {}};
      double sum = 0;
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        if (!pairs[i].is_array()) {
          throw ConfigError(where + ": expected a list of lists");
        }
        map.values.push_back(numbers_of(pairs[i], where));
        map.values[i].resize(pairs.size(), 0);
        map.values[i][i] = 0;
        for (const double count : map.values[i]) {
          sum += count;
        }
      }
      const double mean = sum / std::max(static_cast<double>(pairs.size() * (pairs.size() - 1)), 1.0);
      for (std::size_t i = 0; i < map.values.size(); ++i) {
        for (double& count : map.values[i]) {
          count /= mean > 0 ? mean : 1;
        }
        map.values[i][i] = std::numeric_limits<double>::quiet_NaN();
      }
      maps.columns.resize(std::max(maps.columns.size(), map.values.size()));
      maps.maps.push_back(std::move(map));
      break;
    }
  }
  for (std::size_t i = 0; i < maps.columns.size(); ++i) {
    maps.columns[i] = std::to_string(i);
  }
  if (!maps.maps.empty()) {
    section.figure(figure_of(maps, "pairs-" + run.id, "From the last validation. An expert does not go with itself.",
                             run.command()));
  }
}

void add_alarms(const RunData& run, Section& section) {
  struct Alarm {
    std::string text;
    std::int64_t first, last;  // steps
    std::size_t last_line;
  };
  std::vector<Alarm> alarms;
  for (std::size_t at = 0; at < run.lines.size(); ++at) {
    const RunLine& line = run.lines[at];
    const Json& list = list_at(line.json, "alarms", line.where);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_string()) {
        throw ConfigError(line.where + ": 'alarms' must be a list of sentences");
      }
      const std::string text = list[i].get<std::string>();
      const auto going_on = std::find_if(alarms.begin(), alarms.end(), [&](const Alarm& alarm) {
        return alarm.text == text && alarm.last_line + 1 == at;
      });
      if (going_on == alarms.end()) {
        alarms.push_back({text, line.step, line.step, at});
      } else {
        going_on->last = line.step;
        going_on->last_line = at;
      }
    }
  }
  std::vector<std::string> items;
  constexpr std::size_t most_told = 20;
  for (const Alarm& alarm : alarms) {
    if (items.size() == most_told) {
      items.push_back(fmt::format("and {} more, in the metrics of the run", alarms.size() - most_told));
      break;
    }
    items.push_back(alarm.first == alarm.last ? fmt::format("Step {}: {}", alarm.first, alarm.text)
                                              : fmt::format("Steps {} to {}: {}", alarm.first, alarm.last, alarm.text));
  }
  if (!items.empty()) {
    section.heading("Alarms, " + run.name);
    section.list(items, "alarm");
  }
}

}  // namespace

void add_routing(const RunData& run, Section& section) {
  add_alarms(run, section);
  add_load_map(run, section);
  const std::vector<std::string> all = blocks_of(run, "routing"), blocks = some_of(all, 8);
  if (blocks.empty()) {
    return;
  }
  const std::string some =
      blocks.size() < all.size() ? fmt::format(" {} of {} layers are shown.", blocks.size(), all.size()) : "";
  const auto plot = [](const std::string& title, const std::string& label) {
    Plot made;
    made.title = title;
    made.description = title + ", layer by layer, against steps.";
    made.y = {.label = label};
    return made;
  };
  add_by_layer(
      run, blocks, plot("Entropy of the routing", "entropy / ln(experts)"),
      {{"choice_entropy", ", choices", Dash::solid}, {"probability_entropy", ", probabilities", Dash::dashed}},
      "entropy",
      "Of the shares of load (1: all experts alike) and of a token's probabilities (0: the router is sure)." + some,
      section);
  Plot dead = plot("Dead experts", "experts without a choice in the step");
  dead.y.from_zero = true;
  dead.y.whole = true;
  add_by_layer(run, blocks, dead, {{"dead_experts", "", Dash::solid}}, "dead-experts", some, section);
  add_by_layer(run, blocks, plot("Margin of the choice", "logit of the last chosen - best not chosen"),
               {{"margin", "", Dash::solid}}, "margin", "Mean over tokens; near 0 a small change moves tokens." + some,
               section);
  Plot churn = plot("Churn", "tokens whose experts changed (%)");
  churn.y = {.label = churn.y.label, .from_zero = true, .divisor = 0.01, .data_unit = "of 1"};
  add_by_layer(run, blocks, churn, {{"churn", "", Dash::solid}}, "churn",
               "Of the validation set, since the validation before." + some, section);
  Plot drops = plot("Drops by cause", "choices dropped in the step");
  drops.y.from_zero = true;
  add_by_layer(run, blocks, drops,
               {{"dropped_by_capacity", ", capacity", Dash::solid}, {"dropped_by_chance", ", chance", Dash::dotted}},
               "drops-by-cause", some, section);
  Plot gradient = plot("Gradient into the router by cause", "L2 norm");
  gradient.y = {.label = gradient.y.label, .kind = ScaleKind::logarithmic};
  add_by_layer(run, blocks, gradient,
               {{"grad_norm_loss", ", loss", Dash::solid},
                {"grad_norm_balance", ", balance", Dash::dashed},
                {"grad_norm_z", ", z", Dash::dotted}},
               "router-gradient", some, section);
  add_pairs(run, blocks, section);
}

}  // namespace orthant::report
