// Points of a study that belong together: seeds of one point, points of one size, and what stands beside the main grid.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/report/plot.h"
#include "apps/report/study_data.h"

namespace orthant::report {

// The points that differ in nothing but their seed. Only those that are done.
struct Cell {
  std::string size;
  std::int64_t experts = 1, top_k = 1, granularity = 1, ranks = 1;
  double capacity_factor = 0;
  std::string layout;
  std::vector<const PointData*> seeds;  // at least one
  double lr_factor = 1;
  bool tuned = true;  // of the cells that differ in nothing but their learning rate it has the lowest mean loss

  const PointData& first() const { return *seeds.front(); }
  // Of the seeds that have the number; nothing where none has.
  Maybe mean(Maybe PointData::*number) const;
  Maybe median(Maybe PointData::*number) const;
  // Step by step over the seeds that have the step.
  std::vector<CurvePoint> mean_curve() const;
  // The least and the greatest loss of the seeds at that step.
  std::pair<Maybe, Maybe> curve_range(double step) const;
};

// The 95 % interval of a mean loss, from Student's t.
struct Interval {
  double mean = 0, low = 0, high = 0;
  bool assumed = false;  // of one seed: the spread is that of other points
};

// Of losses. Seeds that two cells share see the same batches: their ratios differ less than the losses themselves.
struct LossRatio {
  double value = 1;
  Maybe low = {}, high = {};  // nothing: no point has several seeds
  bool paired = false;        // by seeds that the cells share
};

// The spread of seeds (standard deviation of log loss), pooled over all cells with several seeds.
struct Spread {
  double deviation = 0;
  std::size_t degrees = 0;  // of freedom; 0: no cell has several seeds, and there are no intervals
  std::size_t cells = 0;
};

// Points into itself and into the study, which must outlive it: it moves, and is not copied.
struct Groups {
  Groups() = default;
  Groups(Groups&&) = default;
  Groups(const Groups&) = delete;

  std::vector<std::string> sizes;     // in the study's order
  std::vector<std::int64_t> experts;  // all counts, ascending
  std::vector<Cell> cells;            // all, in the study's order
  std::vector<const Cell*> grid;      // the main grid: dense twins and the most common choice of everything else
  std::vector<const Cell*> variants;  // the rest
  std::string unit;                   // of losses: "nats per token"
  std::string grid_text;              // what the main grid has in common: "top-k 1, dropless"
  Spread spread;
  Spread of_pairs;  // of ratios of the grid's cells to their twins, seed by seed

  // Of the main grid, ascending in experts.
  std::vector<const Cell*> of_size(const std::string& size) const;
  const Cell* twin_of(const Cell& cell) const;  // the dense cell of its size; its layout's where there is one
  std::optional<Interval> interval(const Cell& cell) const;
  // The loss of `cell` over that of `other`, with the 95 % interval of the ratio.
  std::optional<LossRatio> loss_ratio(const Cell& cell, const Cell& other) const;
  // The cell's loss with its interval, for a plot.
  std::optional<Point> loss_point(const Cell& cell, double x) const;
  std::string experts_colour(std::int64_t count) const;
  std::string size_id(const std::string& size) const;  // for ids of figures
  std::string size_colour(const std::string& size) const;
  Marker size_marker(const std::string& size) const;
};

Groups groups_of(const StudyData& study);

// The time of a step over another cell's, and its range over the rounds of timing, in each of which both were timed.
struct TimeRatio {
  double value = 0;
  Maybe low = {}, high = {};  // nothing: timed in one round, or in unlike ones
};
std::optional<TimeRatio> step_ratio(const Cell& cell, const Cell& over);

// Whether two cells differ in nothing but their learning rate, or in nothing at all.
bool differ_in_rate(const Cell& a, const Cell& b);

// "8 experts", "dense".
std::string experts_name(std::int64_t count);
// What a cell is beside its size and experts: "top-k 2, capacity factor 1.25, granularity 4, layout ep4 on 4 ranks".
std::string variant_name(const Cell& cell);

// Two-sided 95 % quantile of Student's t.
double t_quantile(std::size_t degrees);

}  // namespace orthant::report
