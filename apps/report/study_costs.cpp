// What experts cost: the time of a step by part, memory, bytes sent, drops.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "apps/report/figures.h"
#include "apps/report/study_figures.h"

namespace orthant::report {
namespace {

// Seconds of a step by part, in the order of `names`: those that the study measured, or the forward and backward pass
// and the rest.
std::vector<std::pair<std::string, double>> parts_of(const Cell& cell) {
  if (!cell.first().parts.empty()) {
    // As a step goes, what the model asks for first; a name that is not known here comes last.
    static constexpr std::array<std::string_view, 8> order = {"products at full rate",
                                                              "products below it",
                                                              "routing and permutation",
                                                              "memory-bound operations",
                                                              "exchange and waiting",
                                                              "between operations",
                                                              "other",
                                                              "optimizer"};
    std::vector<std::pair<std::string, double>> parts = cell.first().parts;
    const auto place = [](const auto& part) { return std::find(order.begin(), order.end(), part.first); };
    std::stable_sort(parts.begin(), parts.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
    return parts;
  }
  const Maybe step = cell.median(&PointData::step_seconds), passes = cell.median(&PointData::forward_backward_seconds);
  if (!step) {
    return {};
  }
  return passes ? std::vector<std::pair<std::string, double>>{{"forward and backward", *passes},
                                                              {"optimizer and the rest", *step - *passes}}
                : std::vector<std::pair<std::string, double>>{{"step", *step}};
}

void add_parts(const StudyData& study, const Groups& groups, const std::string& size, Section& section) {
  BarChart chart;
  chart.title = "Time of a step by part, size " + size;
  chart.description = "A bar a number of experts: seconds of a median step by part.";
  double most = 0;
  Maybe twin;
  bool floors = false;
  const std::vector<const Cell*> cells = groups.of_size(size);
  for (const Cell* cell : cells) {
    StackedBar bar{experts_name(cell->experts), std::vector<double>(chart.parts.size(), 0), {}};
    double sum = 0;
    for (const auto& [name, seconds] : parts_of(*cell)) {
      const auto part = std::find(chart.parts.begin(), chart.parts.end(), name);
      const auto at = static_cast<std::size_t>(part - chart.parts.begin());
      if (part == chart.parts.end()) {
        chart.parts.push_back(name);
        bar.values.push_back(0);
      }
      bar.values[at] = seconds;
      sum += std::max(seconds, 0.0);
    }
    if (sum > 0) {
      twin = cell->experts == 1 ? Maybe(sum) : twin;
      bar.mark = cell->median(&PointData::floor_seconds);
      floors = floors || bar.mark;
      most = std::max(most, sum);
      chart.bars.push_back(bar);
    }
  }
  if (chart.bars.empty()) {
    return;
  }
  for (StackedBar& bar : chart.bars) {
    bar.values.resize(chart.parts.size(), 0);
    bar.mark = floors ? bar.mark : twin;
  }
  chart.mark = floors ? "floor" : twin ? "dense twin" : "";
  const Unit unit = seconds_unit(most);
  chart.axis = {.label = "median step (" + unit.name + ")", .divisor = unit.divisor, .data_unit = unit.base};
  section.figure(figure_of(chart, "step-" + groups.size_id(size),
                           floors ? "Timed alone. The floor is what the same work would take at the rate of a large "
                                    "matrix product."
                                  : "Timed alone. The dense twin's step is the floor that experts could reach at equal "
                                    "FLOPs.",
                           command_of(study)));
}

// A cell's number over its twin's, a line a size; of whole steps with the range over the rounds of timing.
Plot over_twin(const Groups& groups, Maybe PointData::*number) {
  Plot plot;
  plot.x = experts_axis(groups);
  for (const std::string& size : groups.sizes) {
    Series series{.name = size, .points = {}, .colour = groups.size_colour(size), .marker = groups.size_marker(size)};
    for (const Cell* cell : groups.of_size(size)) {
      const Cell* twin = groups.twin_of(*cell);
      const Maybe own = cell->median(number), base = twin == nullptr ? std::nullopt : twin->median(number);
      const std::optional<TimeRatio> step =
          number == &PointData::step_seconds && twin != nullptr ? step_ratio(*cell, *twin) : std::nullopt;
      const bool ranged = step && step->low && cell != twin;
      if (own && base && *base > 0) {
        series.points.push_back({static_cast<double>(cell->experts), *own / *base, ranged,
                                 ranged ? step->low : std::nullopt, ranged ? step->high : std::nullopt});
      }
    }
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  plot.levels = {{"dense twin", 1}};
  spread_bars(plot);
  return plot;
}

void add(Plot plot, const std::string& title, const std::string& id, const std::string& label,
         const std::string& caption, const StudyData& study, Section& section) {
  plot.title = title;
  plot.description = title + ". " + caption;
  plot.y.label = label;
  if (has_points(plot)) {
    section.figure(figure_of(plot, id, caption, command_of(study)));
  }
}

// Of every cell of the main grid, a line a size.
Plot against_experts(const Groups& groups, Maybe PointData::*number) {
  Plot plot;
  plot.x = experts_axis(groups);
  for (const std::string& size : groups.sizes) {
    Series series{.name = size, .points = {}, .colour = groups.size_colour(size), .marker = groups.size_marker(size)};
    for (const Cell* cell : groups.of_size(size)) {
      if (const Maybe value = cell->median(number)) {
        series.points.push_back({static_cast<double>(cell->experts), *value});
      }
    }
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  return plot;
}

// Nothing is sent within one rank.
bool on_several_ranks(const Groups& groups, const std::string& size, double experts) {
  const std::vector<const Cell*> cells = groups.of_size(size);
  return std::any_of(cells.begin(), cells.end(), [&](const Cell* cell) {
    return static_cast<double>(cell->experts) == experts && cell->ranks > 1;
  });
}

}  // namespace

void add_step_times(const StudyData& study, const Groups& groups, Section& section) {
  for (const std::string& size : groups.sizes) {
    add_parts(study, groups, size, section);
  }
  add(over_twin(groups, &PointData::forward_backward_seconds), "Forward and backward over the dense twin's",
      "passes-experts", "time / dense twin's time", "Medians of steps timed alone, at equal FLOPs without the router.",
      study, section);
  add(over_twin(groups, &PointData::step_seconds), "A whole step over the dense twin's", "step-experts",
      "time / dense twin's time",
      "With the optimizer, whose work grows with all parameters. Bars are the least and the greatest of the rounds of "
      "timing.",
      study, section);
}

void add_memory_and_bytes(const StudyData& study, const Groups& groups, Section& section) {
  Plot memory = against_experts(groups, &PointData::peak_bytes);
  double most = 0;
  for (const Cell* cell : groups.grid) {
    most = std::max(most, cell->median(&PointData::peak_bytes).value_or(0));
  }
  const Unit unit = bytes_unit(most);
  memory.y = {.label = "", .kind = ScaleKind::logarithmic, .divisor = unit.divisor, .data_unit = unit.base};
  add(memory, "Memory against experts", "memory-experts", "most tensor memory of a rank (" + unit.name + ")",
      "Of the rank that held most.", study, section);
  Plot sent = against_experts(groups, &PointData::dispatch_bytes);
  for (Series& series : sent.series) {
    std::erase_if(series.points, [&](const Point& p) { return !on_several_ranks(groups, series.name, p.x); });
  }
  sent.y = {.label = "", .from_zero = true};
  const bool any = std::any_of(groups.grid.begin(), groups.grid.end(), [](const Cell* cell) {
    return cell->ranks > 1 && cell->first().dispatch_bytes.value_or(0) > 0;
  });
  if (any) {
    add(sent, "Bytes of the token exchange", "bytes-experts", "bytes a token",
        "Sent to experts and back, of one token.", study, section);
  }
}

void add_drops(const StudyData& study, const Groups& groups, Section& section) {
  Plot plot;
  plot.title = "Drops against capacity factor";
  plot.description = "Share of choices that found their expert full, measured and by counterfactual routing.";
  plot.x = {.label = "capacity factor"};
  plot.y = {.label = "choices dropped (%)", .from_zero = true, .divisor = 0.01, .data_unit = "of 1"};
  std::map<std::pair<std::string, std::int64_t>, Series> measured;
  std::vector<Series> counted;
  // Of one size, which has measured points if any has: more lines would hide each other.
  const auto limited = std::find_if(groups.cells.begin(), groups.cells.end(),
                                    [](const Cell& cell) { return cell.experts > 1 && cell.capacity_factor > 0; });
  const std::string size = limited != groups.cells.end() ? limited->size
                           : groups.sizes.empty()        ? ""
                                                         : groups.sizes.front();
  for (const Cell& cell : groups.cells) {
    const std::string name = cell.size + ", " + experts_name(cell.experts);
    const Maybe rate = cell.mean(&PointData::drop_rate);
    if (cell.experts > 1 && cell.capacity_factor > 0 && rate) {
      measured[{cell.size, cell.experts}].name = name;
      measured[{cell.size, cell.experts}].points.push_back({cell.capacity_factor, *rate});
    }
    const bool in_grid = std::find(groups.grid.begin(), groups.grid.end(), &cell) != groups.grid.end();
    const bool shown = cell.size == size && (in_grid || cell.capacity_factor > 0);
    if (shown && !cell.first().counterfactual.empty()) {
      Series series{.name = name + ", counterfactual", .points = {}, .colour = "", .line = Dash::dashed};
      for (const auto& [factor, drop_rate] : cell.first().counterfactual) {
        series.points.push_back({factor, drop_rate});
      }
      counted.push_back(series);
    }
  }
  const auto by_x = [](const Point& a, const Point& b) { return a.x < b.x; };
  for (auto& [key, series] : measured) {
    series.colour = distinct_colour(plot.series.size());
    series.marker = distinct_marker(plot.series.size());
    std::sort(series.points.begin(), series.points.end(), by_x);
    plot.series.push_back(series);
  }
  for (Series& series : counted) {
    const auto same = std::find_if(plot.series.begin(), plot.series.end(), [&](const Series& other) {
      return other.line == Dash::solid && series.name.starts_with(other.name + ",");
    });
    series.colour = same == plot.series.end() ? distinct_colour(plot.series.size()) : same->colour;
    std::sort(series.points.begin(), series.points.end(), by_x);
    plot.series.push_back(series);
  }
  if (has_points(plot)) {
    section.figure(
        figure_of(plot, "drops-capacity",
                  "Marks are measured, means over training and seeds. Dashed: what recorded routing tells for "
                  "other capacity factors (orthant route).",
                  command_of(study)));
  }
}

}  // namespace orthant::report
