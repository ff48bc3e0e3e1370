// Losses against seconds, steps, FLOPs, parameters, bytes and experts.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "apps/report/figures.h"
#include "apps/report/study_figures.h"

namespace orthant::report {
namespace {

using Cost = std::function<Maybe(const Cell&)>;  // of a cell's whole training

std::string interval_note(const Groups& groups) {
  if (groups.spread.degrees == 0) {
    return " No point has several seeds, so there are no intervals.";
  }
  return fmt::format(
      " Bars are 95 % intervals of the mean over seeds: the spread of seeds is {:.2g} % of a loss, pooled over {} "
      "points "
      "with several seeds ({} degrees of freedom). A dotted bar is of a point with one seed, which takes that spread.",
      100 * groups.spread.deviation, groups.spread.cells, groups.spread.degrees);
}

Maybe seconds_of(const Cell& cell) {
  const Maybe step = cell.median(&PointData::step_seconds);
  return step && cell.first().steps ? Maybe(*step * *cell.first().steps) : std::nullopt;
}

Maybe flops_of(const Cell& cell) {
  return cell.first().flops();
}

// Final losses of the main grid against a cost: a line a number of experts, through the sizes.
Plot by_experts(const Groups& groups, const Axis& x, const Cost& cost) {
  Plot plot;
  plot.x = x;
  plot.y = {.label = "final validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
  for (const std::int64_t count : groups.experts) {
    Series series{.name = experts_name(count),
                  .points = {},
                  .colour = groups.experts_colour(count),
                  .line = count == 1 ? Dash::dashed : Dash::solid,
                  .marker = count == 1 ? Marker::square : Marker::circle};
    for (const Cell* cell : groups.grid) {
      const Maybe at = cell->experts == count ? cost(*cell) : std::nullopt;
      const std::optional<Point> point = at ? groups.loss_point(*cell, *at) : std::nullopt;
      if (point) {
        series.points.push_back(*point);
      }
    }
    std::sort(series.points.begin(), series.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  return plot;
}

// The same, a line a size, through the numbers of experts; costs decide the order.
Plot by_size(const Groups& groups, const Axis& x, const Cost& cost) {
  Plot plot;
  plot.x = x;
  plot.y = {.label = "final validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
  for (const std::string& size : groups.sizes) {
    Series series{.name = size, .points = {}, .colour = groups.size_colour(size), .marker = groups.size_marker(size)};
    for (const Cell* cell : groups.of_size(size)) {
      const Maybe at = cost(*cell);
      const std::optional<Point> point = at ? groups.loss_point(*cell, *at) : std::nullopt;
      if (point) {
        series.points.push_back(*point);
      }
    }
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  return plot;
}

// Of the steps: what is not drawn of a curve, so that its end can be told from others.
constexpr double first_share = 0.2;
constexpr const char* not_drawn =
    " Mean over seeds, with a band from the least to the greatest of them; the first fifth of the steps is not drawn.";

// Validation losses of one size while training: a line a number of experts.
Plot curves_of(const Groups& groups, const std::string& size, const Axis& x,
               const std::function<Maybe(const Cell&, const CurvePoint&)>& at) {
  Plot plot;
  plot.x = x;
  plot.y = {.label = "validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
  for (const Cell* cell : groups.of_size(size)) {
    Series series{.name = experts_name(cell->experts),
                  .points = {},
                  .colour = groups.experts_colour(cell->experts),
                  .line = cell->experts == 1 ? Dash::dashed : Dash::solid};
    const std::vector<CurvePoint> curve = cell->mean_curve();
    series.band = cell->seeds.size() > 1;
    for (const CurvePoint& p : curve) {
      const Maybe place = at(*cell, p);
      if (place && p.step >= first_share * curve.back().step) {
        const auto [low, high] = cell->curve_range(p.step);
        series.points.push_back({*place, p.loss, series.band, low, high});
      }
    }
    series.points = thinned(series.points, most_line_points);
    series.marker = series.points.size() == 1 ? Marker::circle : Marker::none;
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  return plot;
}

double most_seconds(const Groups& groups) {
  double most = 0;
  for (const Cell* cell : groups.grid) {
    most = std::max(most, seconds_of(*cell).value_or(0));
  }
  return most;
}

Axis seconds_axis(const Groups& groups) {
  const Unit unit = seconds_unit(most_seconds(groups));
  return {.label = "training time (" + unit.name + ")",
          .kind = ScaleKind::logarithmic,
          .divisor = unit.divisor,
          .data_unit = unit.base};
}

void add(Plot plot, const std::string& title, const std::string& id, const std::string& caption, const StudyData& study,
         Section& section) {
  plot.title = title;
  plot.description = title + ". " + caption;
  if (has_points(plot)) {
    section.figure(figure_of(plot, id, caption, command_of(study)));
  }
}

constexpr const char* timed = "Seconds are steps times the median step, timed with the machine to itself.";

// Losses of other choices than the main grid's, on its layout, beside it.
void add_variants(const StudyData& study, const Groups& groups, Section& section) {
  const auto name_of = [](const Cell& cell) { return cell.size + ", " + variant_name(cell); };
  const Cell* main = groups.grid.empty() ? nullptr : groups.grid.back();
  const auto on_layout = [&](const Cell& cell) {
    return main != nullptr && cell.tuned && cell.experts > 1 && cell.layout == main->layout &&
           cell.ranks == main->ranks;
  };
  std::set<std::string> sizes;
  for (const Cell* cell : groups.variants) {
    if (on_layout(*cell)) {
      sizes.insert(cell->size);
    }
  }
  Plot plot;
  plot.x = experts_axis(groups);
  plot.y = {.label = "final validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
  for (const Cell& cell : groups.cells) {
    const std::optional<Point> point = groups.loss_point(cell, static_cast<double>(cell.experts));
    if (!point || !on_layout(cell) || !sizes.contains(cell.size)) {
      continue;
    }
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const Series& known) { return known.name == name_of(cell); });
    if (series == plot.series.end()) {
      const std::size_t i = plot.series.size();
      plot.series.push_back(
          {.name = name_of(cell), .points = {}, .colour = distinct_colour(i), .marker = distinct_marker(i)});
      series = std::prev(plot.series.end());
    }
    series->points.push_back(*point);
  }
  for (Series& series : plot.series) {
    std::sort(series.points.begin(), series.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  }
  add(plot, "Final loss of other choices", "loss-variants", "Of the sizes that have points beside the main grid.",
      study, section);
}

// Losses of the points that differ in their learning rate alone, a picture a size and a line a number of experts.
void add_learning_rates(const StudyData& study, const Groups& groups, Section& section) {
  for (const std::string& size : groups.sizes) {
    Plot plot;
    plot.x = {.label = "learning rate / the size's", .kind = ScaleKind::logarithmic};
    plot.y = {.label = "final validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
    std::set<double> tried;
    for (const Cell* tuned : groups.of_size(size)) {
      Series series{.name = experts_name(tuned->experts),
                    .points = {},
                    .colour = groups.experts_colour(tuned->experts),
                    .line = tuned->experts == 1 ? Dash::dashed : Dash::solid,
                    .marker = tuned->experts == 1 ? Marker::square : Marker::circle};
      for (const Cell& cell : groups.cells) {
        const std::optional<Point> point =
            differ_in_rate(cell, *tuned) ? groups.loss_point(cell, cell.lr_factor) : std::nullopt;
        if (point) {
          series.points.push_back(*point);
          tried.insert(cell.lr_factor);
        }
      }
      std::sort(series.points.begin(), series.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
      plot.series.push_back(std::move(series));
    }
    if (tried.size() > 1) {
      plot.x.ticks.assign(tried.begin(), tried.end());
      add(plot, "Final loss against the learning rate, size " + size, "loss-rate-" + groups.size_id(size),
          "The lowest of each line is the point that all other figures show." + interval_note(groups), study, section);
    }
  }
}

}  // namespace

Axis experts_axis(const Groups& groups) {
  Axis axis{.label = "experts (1: dense)", .kind = ScaleKind::logarithmic};
  for (const std::int64_t count : groups.experts) {
    axis.ticks.push_back(static_cast<double>(count));
  }
  return axis;
}

Plot curves_against_seconds(const Groups& groups, const std::string& size) {
  return curves_of(groups, size, seconds_axis(groups), [](const Cell& cell, const CurvePoint& p) -> Maybe {
    const Maybe step = cell.median(&PointData::step_seconds);
    return step ? Maybe(p.step * *step) : std::nullopt;
  });
}

void add_loss_against_seconds(const StudyData& study, const Groups& groups, Section& section) {
  add(by_experts(groups, seconds_axis(groups), seconds_of), "Final loss against seconds of training", "loss-seconds",
      std::string(timed) + " A line a number of experts, a mark a size: lower and further left is better." +
          interval_note(groups),
      study, section);
  for (const std::string& size : groups.sizes) {
    add(curves_against_seconds(groups, size), "Loss while training against seconds, size " + size,
        "curve-seconds-" + groups.size_id(size), std::string(timed) + not_drawn, study, section);
  }
}

void add_loss_against_costs(const StudyData& study, const Groups& groups, Section& section) {
  for (const std::string& size : groups.sizes) {
    add(curves_of(groups, size, {.label = "optimizer steps", .kind = ScaleKind::logarithmic},
                  [](const Cell&, const CurvePoint& p) -> Maybe { return p.step; }),
        "Loss while training against steps, size " + size, "curve-steps-" + groups.size_id(size),
        std::string(not_drawn + 1), study, section);
  }
  Plot by_flops = by_experts(groups, {.label = "training FLOPs", .kind = ScaleKind::logarithmic}, flops_of);
  spread_bars(by_flops);  // the router's FLOPs alone tell the points of a size apart
  add(by_flops, "Final loss against FLOPs", "loss-flops",
      "FLOPs of the model and its router for all tokens, forward and backward. A line a number of experts, a mark a "
      "size.",
      study, section);
  add(by_size(groups, {.label = "parameters in all", .kind = ScaleKind::logarithmic},
              [](const Cell& cell) { return cell.first().total; }),
      "Final loss against total parameters", "loss-parameters",
      "A line a size, from the dense twin to the most experts.", study, section);
  double most = 0;
  for (const Cell* cell : groups.grid) {
    most = std::max(most, cell->median(&PointData::peak_bytes).value_or(0));
  }
  const Unit unit = bytes_unit(most);
  add(by_size(groups,
              {.label = "most tensor memory (" + unit.name + ")",
               .kind = ScaleKind::logarithmic,
               .divisor = unit.divisor,
               .data_unit = unit.base},
              [](const Cell& cell) { return cell.median(&PointData::peak_bytes); }),
      "Final loss against memory", "loss-memory", "Of the rank that held most. A line a size.", study, section);
}

namespace {

double shift_of(const Plot& plot, const std::string& name) {
  const auto series =
      std::find_if(plot.series.begin(), plot.series.end(), [&](const Series& one) { return one.name == name; });
  return series == plot.series.end() ? 0 : series->shift;
}

}  // namespace

Plot loss_against_experts(const Groups& groups) {
  Plot plot =
      by_size(groups, experts_axis(groups), [](const Cell& cell) { return Maybe(static_cast<double>(cell.experts)); });
  plot.title = "Final loss against experts";
  spread_bars(plot);
  return plot;
}

void add_loss_against_experts(const StudyData& study, const Groups& groups, Section& section) {
  Plot plot = loss_against_experts(groups);
  for (const std::string& size : groups.sizes) {
    Series seeds{.name = size + ", single seeds",
                 .points = {},
                 .colour = groups.size_colour(size),
                 .line = Dash::none,
                 .marker = Marker::circle,
                 .legend = false,
                 .faint = true,
                 .shift = shift_of(plot, size)};
    for (const Cell* cell : groups.of_size(size)) {
      for (const PointData* seed : cell->seeds) {
        if (seed->loss && cell->seeds.size() > 1) {
          seeds.points.push_back({static_cast<double>(cell->experts), *seed->loss});
        }
      }
    }
    if (!seeds.points.empty()) {
      plot.series.push_back(seeds);
    }
  }
  add(plot, "Final loss against experts", "loss-experts",
      "At equal steps, on the same batches. Small marks are single seeds." + interval_note(groups), study, section);

  add_learning_rates(study, groups, section);
  add_variants(study, groups, section);
}

}  // namespace orthant::report
