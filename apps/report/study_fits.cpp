// Laws over the points, their residuals, and what follows from them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/report/figures.h"
#include "apps/report/study_figures.h"

namespace orthant::report {
namespace {

std::string side(const Maybe& value) {
  return value ? number_text(*value) : "open";
}

std::string interval_text(const Maybe& low, const Maybe& high) {
  return "[" + side(low) + ", " + side(high) + "]";
}

// A coefficient that the data bound on neither side stands where the search ended.
std::vector<std::string> coefficient_row(const Coefficient& c) {
  const bool identified = !c.value || c.low || c.high;
  return identified ? std::vector{c.name, text_or_missing(c.value), interval_text(c.low, c.high)}
                    : std::vector<std::string>{c.name, "not identified", "the points bound it on neither side"};
}

std::string times(const Maybe& value) {
  return value ? fmt::format("{:.2f}", *value) : "open";
}

// reached: whether the twin's final loss is reached at all; then a value that is missing was not measured.
std::string times(bool reached, const Maybe& value, const Maybe& low, const Maybe& high) {
  if (reached && !value) {
    return "missing";
  }
  return fmt::format("{} [{}, {}]", value ? times(value) : "not reached", times(low), times(high));
}

// Measured losses and the law's, a colour a size.
Plot law_plot(const StudyData& study, const Groups& groups, const LawData& law) {
  Plot plot;
  plot.title = law.name;
  plot.description = "Final losses of the points and the fitted law's, against experts.";
  plot.x = experts_axis(groups);
  plot.y = {.label = "final validation loss (" + groups.unit + ")", .kind = ScaleKind::logarithmic};
  for (const std::string& size : groups.sizes) {
    Series points{.name = size + ", measured",
                  .points = {},
                  .colour = groups.size_colour(size),
                  .line = Dash::none,
                  .marker = groups.size_marker(size)};
    Series line{.name = size + ", law", .points = {}, .colour = groups.size_colour(size), .line = Dash::dashed};
    for (const auto& [id, loss] : law.predicted) {
      const PointData* point = study.find(id);
      if (point == nullptr || point->size != size) {
        continue;
      }
      const auto experts = static_cast<double>(point->experts);
      if (point->loss) {
        points.points.push_back({experts, *point->loss});
      }
      const bool known = std::any_of(line.points.begin(), line.points.end(),
                                     [&](const Point& p) { return p.x == experts && p.y == loss; });
      if (!known) {
        line.points.push_back({experts, loss});
      }
    }
    if (const auto curve = law.curves.find(size); curve != law.curves.end()) {
      line.points.clear();
      for (const auto& [experts, loss] : curve->second) {
        line.points.push_back({experts, loss});
      }
    }
    std::sort(line.points.begin(), line.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    for (Series* series : {&points, &line}) {
      if (!series->points.empty()) {
        plot.series.push_back(*series);
      }
    }
  }
  return plot;
}

Plot residual_plot(const StudyData& study, const Groups& groups, const LawData& law) {
  Plot plot;
  plot.title = "Residuals: " + law.name;
  plot.description = "Measured over fitted loss, less one, against experts.";
  plot.x = experts_axis(groups);
  plot.y = {.label = "measured loss / law's - 1 (%)", .divisor = 0.01, .data_unit = "of 1"};
  plot.levels = {{"", 0}};
  for (const std::string& size : groups.sizes) {
    Series series{.name = size,
                  .points = {},
                  .colour = groups.size_colour(size),
                  .line = Dash::none,
                  .marker = groups.size_marker(size)};
    for (const auto& [id, loss] : law.predicted) {
      const PointData* point = study.find(id);
      if (point != nullptr && point->size == size && point->loss && loss > 0) {
        series.points.push_back({static_cast<double>(point->experts), *point->loss / loss - 1});
      }
    }
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  return plot;
}

void add_law(const StudyData& study, const Groups& groups, const LawData& law, std::size_t number, Section& section) {
  section.heading(law.name);
  if (!law.formula.empty()) {
    section.paragraph(law.formula, "formula");
  }
  Grid coefficients{{"coefficient", "value", "95 % interval"}, {}};
  for (const Coefficient& c : law.coefficients) {
    coefficients.rows.push_back(coefficient_row(c));
  }
  if (!coefficients.rows.empty()) {
    section.table(coefficients, fmt::format("Fitted to {} points; residuals have a root mean square of {} in log loss.",
                                            text_or_missing(law.points), text_or_missing(law.residual_rms)));
  }
  Grid left_out{{"size left out", "its error (rms of log loss)"}, {}};
  for (const auto& [size, error] : law.leave_one_size_out) {
    left_out.rows.push_back({size, text_or_missing(error)});
  }
  if (!left_out.rows.empty()) {
    section.table(left_out, "Leave one size out: fitted without the size, tried on it.");
  }
  const std::string id = fmt::format("law-{}", number + 1);
  const Plot fit = law_plot(study, groups, law), residuals = residual_plot(study, groups, law);
  if (has_points(fit)) {
    section.figure(figure_of(fit, id, "Marks are measured, lines are the law.", command_of(study)));
  }
  if (has_points(residuals)) {
    section.figure(
        figure_of(residuals, id + "-residuals", "Above 0: the point is worse than the law says.", command_of(study)));
  }
}

// Whether the point stands in the main grid: lines against experts join those alone.
bool is_in_grid(const Groups& groups, const PointData& point) {
  return std::any_of(groups.grid.begin(), groups.grid.end(), [&](const Cell* cell) {
    return std::find(cell->seeds.begin(), cell->seeds.end(), &point) != cell->seeds.end();
  });
}

struct Side {
  Maybe SpeedUp::*value;
  Maybe SpeedUp::*low;
  Maybe SpeedUp::*high;
};

Plot speed_up_plot(const StudyData& study, const Groups& groups, const Side& what, const std::string& unit) {
  Plot plot;
  plot.title = "Speed-up to the dense twin's final loss, in " + unit;
  plot.description = plot.title + ", against experts; above 1 the experts win.";
  plot.x = experts_axis(groups);
  plot.y = {.label = "dense twin's " + unit + " / own " + unit, .kind = ScaleKind::logarithmic};
  plot.levels = {{"dense twin", 1}};
  for (const std::string& size : groups.sizes) {
    Series series{.name = size, .points = {}, .colour = groups.size_colour(size), .marker = groups.size_marker(size)};
    for (const SpeedUp& entry : study.speed_ups) {
      const PointData* point = study.find(entry.id);
      if (point != nullptr && point->size == size && is_in_grid(groups, *point) && entry.*what.value) {
        series.points.push_back(
            {static_cast<double>(point->experts), *(entry.*what.value), true, entry.*what.low, entry.*what.high});
      }
    }
    std::sort(series.points.begin(), series.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    if (!series.points.empty()) {
      plot.series.push_back(series);
    }
  }
  spread_bars(plot);
  return plot;
}

}  // namespace

void add_fits(const StudyData& study, const Groups& groups, Section& section) {
  if (!study.has_fits) {
    section.paragraph("There is no fits.json yet: nothing was fitted.", "note");
    return;
  }
  for (std::size_t i = 0; i < study.laws.size(); ++i) {
    add_law(study, groups, study.laws[i], i, section);
  }
  std::vector<std::string> skipped;
  for (const auto& [name, why] : study.skipped) {
    skipped.push_back(name + " was not fitted: " + why);
  }
  if (!skipped.empty()) {
    section.list(skipped, "note");
  }
  Plot effective;
  effective.title = "Effective parameters";
  effective.description = "Parameters of a dense model of equal loss by the law, against experts.";
  effective.x = experts_axis(groups);
  effective.y = {.label = "parameters of an equally good dense model", .kind = ScaleKind::logarithmic};
  Grid grid{{"point", "effective parameters", "95 % interval", "parameters in all", "active"}, {}};
  for (const std::string& size : groups.sizes) {
    Series series{.name = size, .points = {}, .colour = groups.size_colour(size), .marker = groups.size_marker(size)};
    for (const EffectiveParameters& entry : study.effective) {
      const PointData* point = study.find(entry.id);
      if (point == nullptr || point->size != size) {
        continue;
      }
      grid.rows.push_back({entry.id, text_or_missing(entry.value), interval_text(entry.low, entry.high),
                           text_or_missing(point->total), text_or_missing(point->active)});
      if (entry.value && is_in_grid(groups, *point)) {
        series.points.push_back({static_cast<double>(point->experts), *entry.value, true, entry.low, entry.high});
      }
    }
    std::sort(series.points.begin(), series.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    if (!series.points.empty()) {
      effective.series.push_back(series);
    }
  }
  if (!grid.rows.empty()) {
    section.heading("Effective parameters");
    section.paragraph("The dense model that would reach a point's loss by the law has so many parameters.");
  }
  spread_bars(effective);
  if (has_points(effective)) {
    section.figure(
        figure_of(effective, "effective-parameters",
                  "Bars are 95 % intervals by bootstrap; a dotted bar is open at the side where it ends at the "
                  "picture's edge.",
                  command_of(study)));
  }
  if (!grid.rows.empty()) {
    section.table(grid, "Effective parameters by point", true);
  }
}

void add_speed_up(const StudyData& study, const Groups& groups, Section& section) {
  if (study.speed_ups.empty()) {
    return;
  }
  Grid grid{{"point", "size", "experts", "in seconds", "in steps"}, {}};
  std::vector<std::string> commands;
  for (const SpeedUp& entry : study.speed_ups) {
    const PointData* point = study.find(entry.id);
    grid.rows.push_back({entry.id, point == nullptr ? "" : point->size,
                         point == nullptr ? "" : std::to_string(point->experts),
                         times(entry.steps.has_value(), entry.seconds, entry.seconds_low, entry.seconds_high),
                         times(entry.steps.has_value(), entry.steps, entry.steps_low, entry.steps_high)});
    commands.push_back(point == nullptr ? "" : command_of(*point));
  }
  const std::string caption =
      "How many times sooner than its dense twin a point reaches the twin's final loss, with 95 % intervals by "
      "bootstrap. "
      "Below 1 the twin is sooner. A side that the data does not bound is open.";
  for (const auto& [side_of, unit] :
       {std::pair(Side{&SpeedUp::seconds, &SpeedUp::seconds_low, &SpeedUp::seconds_high}, "seconds"),
        std::pair(Side{&SpeedUp::steps, &SpeedUp::steps_low, &SpeedUp::steps_high}, "steps")}) {
    const Plot plot = speed_up_plot(study, groups, side_of, unit);
    if (has_points(plot)) {
      section.figure(figure_of(plot, std::string("speed-up-") + unit,
                               "Above 1 the experts win. Bars are 95 % intervals of the losses; the time of a step is "
                               "taken as it was measured.",
                               command_of(study)));
    }
  }
  section.table_with_commands(grid, commands, caption);
}

}  // namespace orthant::report
