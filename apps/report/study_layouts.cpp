// One point on several layouts, and how layouts scale.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/report/figures.h"
#include "apps/report/study_figures.h"

namespace orthant::report {
namespace {

std::string layout_name(std::int64_t ranks, const std::string& layout) {
  const std::string text = ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks);
  return layout.empty() || layout == "one" ? text : text + " (" + layout + ")";
}

constexpr std::size_t most_curves = 4;  // shown as pictures

// All that decides a point's numbers but its layout.
std::string numbers_key(const PointData& p) {
  return fmt::format("{}/{}/{}/{}/{}/{}/{}", p.size, p.experts, p.top_k, p.capacity_factor, p.granularity, p.lr_factor,
                     p.seed);
}

std::string numbers_name(const PointData& p) {
  std::string text = p.size + ", " + experts_name(p.experts);
  text += p.experts > 1 ? fmt::format(", top-{}", p.top_k) : "";
  text += p.capacity_factor > 0 ? fmt::format(", capacity factor {}", p.capacity_factor) : "";
  return text + fmt::format(", seed {}", p.seed);
}

// The largest distance of two curves over the steps that both have; nothing where they share none.
Maybe largest_difference(const std::vector<CurvePoint>& a, const std::vector<CurvePoint>& b) {
  Maybe largest;
  for (const CurvePoint& p : a) {
    for (const CurvePoint& q : b) {
      if (p.step == q.step) {
        largest = std::max(largest.value_or(0), std::abs(p.loss - q.loss));
      }
    }
  }
  return largest;
}

}  // namespace

void add_one_curve(const StudyData& study, const Groups& groups, Section& section) {
  std::vector<std::pair<std::string, std::vector<const PointData*>>> same;
  for (const PointData& point : study.points) {
    if (!point.done() || point.curve.empty()) {
      continue;
    }
    const std::string key = numbers_key(point);
    auto known = std::find_if(same.begin(), same.end(), [&](const auto& entry) { return entry.first == key; });
    if (known == same.end()) {
      same.push_back({key, {}});
      known = std::prev(same.end());
    }
    known->second.push_back(&point);
  }
  std::size_t number = 0;
  Grid grid{{"point", "layouts", "largest difference (nats)"}, {}};
  for (const auto& [key, points] : same) {
    if (points.size() < 2) {
      continue;
    }
    Plot plot;
    plot.title = "One curve: " + numbers_name(*points[0]);
    plot.description = "Validation loss of the same point on several layouts, against steps.";
    plot.x = {.label = "optimizer steps", .from_zero = true};
    plot.y = {.label = "validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
    Maybe largest;
    constexpr Dash dashes[] = {Dash::solid, Dash::dashed, Dash::dotted};
    for (std::size_t i = 0; i < points.size(); ++i) {
      Series series{.name = layout_name(points[i]->ranks, points[i]->layout),
                    .points = {},
                    .colour = distinct_colour(i),
                    .line = dashes[i % 3],
                    .marker = distinct_marker(i),
                    .marker_every = points.size(),
                    .first_marker = i};
      for (const CurvePoint& p : points[i]->curve) {
        series.points.push_back({p.step, p.loss});
      }
      plot.series.push_back(series);
      for (std::size_t j = 0; j < i; ++j) {
        const Maybe difference = largest_difference(points[i]->curve, points[j]->curve);
        largest = difference ? Maybe(std::max(largest.value_or(0), *difference)) : largest;
      }
    }
    std::string commands;
    for (const PointData* point : points) {
      commands += (commands.empty() ? "" : "\n") + command_of(*point);
    }
    const std::string caption =
        largest ? fmt::format("The largest difference of two curves at a step is {:.2g} nats.", *largest)
                : "The curves share no step.";
    if (++number <= most_curves) {
      section.figure(figure_of(plot, fmt::format("one-curve-{}", number), caption, commands));
    }
    grid.rows.push_back({numbers_name(*points[0]), std::to_string(points.size()),
                         largest ? fmt::format("{:.2g}", *largest) : "missing"});
  }
  if (!grid.rows.empty()) {
    section.table(grid,
                  "The same point on several layouts: the largest difference of two validation losses at a step.");
  }
}

void add_scaling(const StudyData& study, const Groups& groups, Section& section) {
  // Strong: everything but the layout fixed. Weak: experts a rank fixed.
  for (const bool weak : {false, true}) {
    std::map<std::string, std::vector<const Cell*>> lines;
    for (const Cell& cell : groups.cells) {
      const bool divides = cell.experts > 1 && cell.experts % cell.ranks == 0;
      if (cell.median(&PointData::step_seconds) && (!weak || divides)) {
        const std::string experts =
            weak ? fmt::format("{} experts a rank", cell.experts / cell.ranks) : experts_name(cell.experts);
        std::string name = cell.size + ", " + experts;
        name += cell.experts > 1 ? fmt::format(", top-{}", cell.top_k) : "";
        name += cell.capacity_factor > 0 ? fmt::format(", capacity factor {}", cell.capacity_factor) : "";
        name += cell.granularity != 1 ? fmt::format(", granularity {}", cell.granularity) : "";
        lines[name].push_back(&cell);
      }
    }
    Plot plot;
    plot.title = weak ? "Weak scaling: experts grow with ranks" : "Strong scaling: experts fixed";
    plot.description = plot.title + ". Median step over the first one's, against ranks.";
    plot.x = {.label = "ranks", .kind = ScaleKind::logarithmic};
    plot.y = {.label = "step time / that of the fewest ranks", .kind = ScaleKind::logarithmic};
    plot.levels = {{"the fewest ranks", 1}};
    for (auto& [name, cells] : lines) {
      std::stable_sort(cells.begin(), cells.end(), [](const Cell* a, const Cell* b) { return a->ranks < b->ranks; });
      if (cells.front()->ranks == cells.back()->ranks) {
        continue;
      }
      Series series{.name = name,
                    .points = {},
                    .colour = distinct_colour(plot.series.size()),
                    .marker = distinct_marker(plot.series.size())};
      const double first = *cells.front()->median(&PointData::step_seconds);
      for (const Cell* cell : cells) {
        const auto ranks = static_cast<double>(cell->ranks);
        series.points.push_back({ranks, *cell->median(&PointData::step_seconds) / first});
        if (std::find(plot.x.ticks.begin(), plot.x.ticks.end(), ranks) == plot.x.ticks.end()) {
          plot.x.ticks.push_back(ranks);
        }
      }
      plot.series.push_back(series);
    }
    std::sort(plot.x.ticks.begin(), plot.x.ticks.end());
    if (has_points(plot)) {
      section.figure(figure_of(plot, weak ? "weak-scaling" : "strong-scaling",
                               weak ? "The same tokens on more ranks with more experts: 1 would be free."
                                    : "The same work on more ranks. Below 1 they are faster; ranks that share the "
                                      "machine's cores cannot be.",
                               command_of(study)));
    }
  }
}

}  // namespace orthant::report
