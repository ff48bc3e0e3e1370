#include "apps/report/study_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "apps/report/figures.h"

namespace orthant::report {
namespace {

using Variant = std::tuple<std::int64_t, double, std::int64_t, std::string, std::int64_t>;

Variant variant_of(const Cell& cell) {
  return {cell.top_k, cell.capacity_factor, cell.granularity, cell.layout, cell.ranks};
}

bool same_cell(const Cell& cell, const PointData& point) {
  return cell.size == point.size && cell.experts == point.experts && cell.top_k == point.top_k &&
         cell.granularity == point.granularity && cell.ranks == point.ranks && cell.layout == point.layout &&
         cell.capacity_factor == point.capacity_factor && cell.lr_factor == point.lr_factor;
}

template <class T>
void add_once(std::vector<T>& all, const T& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) {
    all.push_back(one);
  }
}

std::vector<double> values_of(const Cell& cell, Maybe PointData::*number) {
  std::vector<double> values;
  for (const PointData* seed : cell.seeds) {
    if (seed->*number) {
      values.push_back(*(seed->*number));
    }
  }
  return values;
}

Spread spread_of(const std::vector<Cell>& cells) {
  Spread spread;
  double squares = 0;
  for (const Cell& cell : cells) {
    std::vector<double> logs;
    for (const double loss : values_of(cell, &PointData::loss)) {
      if (loss > 0) {
        logs.push_back(std::log(loss));
      }
    }
    if (logs.size() < 2) {
      continue;
    }
    double mean = 0;
    for (const double log : logs) {
      mean += log / static_cast<double>(logs.size());
    }
    for (const double log : logs) {
      squares += (log - mean) * (log - mean);
    }
    spread.degrees += logs.size() - 1;
    ++spread.cells;
  }
  spread.deviation = spread.degrees > 0 ? std::sqrt(squares / static_cast<double>(spread.degrees)) : 0;
  return spread;
}

// The most common choice of everything but size, experts and seed: that of the most cells with experts.
Variant main_variant(const std::vector<Cell>& cells) {
  std::vector<std::pair<Variant, std::size_t>> counts;
  for (const bool routed : {true, false}) {
    for (const Cell& cell : cells) {
      if ((cell.experts > 1) == routed) {
        const Variant variant = variant_of(cell);
        auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == variant; });
        if (known == counts.end()) {
          counts.push_back({variant, 1});
        } else {
          ++known->second;
        }
      }
    }
    if (!counts.empty()) {
      break;
    }
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? Variant() : most->first;
}

// ln of the ratios of losses, seed by seed.
std::vector<double> log_ratios(const Cell& cell, const Cell& other) {
  std::vector<double> ratios;
  for (const PointData* a : cell.seeds) {
    for (const PointData* b : other.seeds) {
      if (a->seed == b->seed && a->loss && b->loss && *a->loss > 0 && *b->loss > 0) {
        ratios.push_back(std::log(*a->loss / *b->loss));
      }
    }
  }
  return ratios;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return sum / static_cast<double>(values.size());
}

Spread spread_of_pairs(const Groups& groups) {
  Spread spread;
  double squares = 0;
  for (const Cell* cell : groups.grid) {
    const Cell* twin = cell->experts == 1 ? nullptr : groups.twin_of(*cell);
    const std::vector<double> ratios = twin == nullptr ? std::vector<double>() : log_ratios(*cell, *twin);
    if (ratios.size() < 2) {
      continue;
    }
    const double mean = mean_of(ratios);
    for (const double ratio : ratios) {
      squares += (ratio - mean) * (ratio - mean);
    }
    spread.degrees += ratios.size() - 1;
    ++spread.cells;
  }
  spread.deviation = spread.degrees > 0 ? std::sqrt(squares / static_cast<double>(spread.degrees)) : 0;
  return spread;
}

}  // namespace

Maybe Cell::mean(Maybe PointData::*number) const {
  const std::vector<double> values = values_of(*this, number);
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return values.empty() ? std::nullopt : Maybe(sum / static_cast<double>(values.size()));
}

Maybe Cell::median(Maybe PointData::*number) const {
  return report::median(values_of(*this, number));
}

std::optional<TimeRatio> step_ratio(const Cell& cell, const Cell& over) {
  const Maybe own = cell.median(&PointData::step_seconds), base = over.median(&PointData::step_seconds);
  if (!own || !base || *base <= 0) {
    return std::nullopt;
  }
  TimeRatio ratio{*own / *base};
  const std::vector<double>&a = cell.first().rounds, &b = over.first().rounds;
  for (std::size_t i = 0; i < a.size() && a.size() == b.size() && a.size() > 1; ++i) {
    if (b[i] > 0) {
      ratio.low = std::min(ratio.low.value_or(a[i] / b[i]), a[i] / b[i]);
      ratio.high = std::max(ratio.high.value_or(a[i] / b[i]), a[i] / b[i]);
    }
  }
  return ratio;
}

std::pair<Maybe, Maybe> Cell::curve_range(double step) const {
  Maybe low, high;
  for (const PointData* seed : seeds) {
    for (const CurvePoint& p : seed->curve) {
      if (p.step == step) {
        low = std::min(low.value_or(p.loss), p.loss);
        high = std::max(high.value_or(p.loss), p.loss);
      }
    }
  }
  return {low, high};
}

std::vector<CurvePoint> Cell::mean_curve() const {
  std::map<double, std::pair<CurvePoint, int>> sums;
  for (const PointData* seed : seeds) {
    for (const CurvePoint& p : seed->curve) {
      auto& [sum, count] = sums[p.step];
      sum.step = p.step;
      sum.tokens += p.tokens;
      sum.loss += p.loss;
      ++count;
    }
  }
  std::vector<CurvePoint> curve;
  for (const auto& [step, entry] : sums) {
    const auto& [sum, count] = entry;
    curve.push_back({step, sum.tokens / count, sum.loss / count});
  }
  return curve;
}

double t_quantile(std::size_t degrees) {
  constexpr std::array<double, 30> table = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                            2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                            2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return degrees == 0              ? INFINITY
         : degrees <= table.size() ? table[degrees - 1]
                                   : 1.960 + 2.5 / static_cast<double>(degrees);
}

Groups groups_of(const StudyData& study) {
  Groups groups;
  groups.unit = study.unit;
  for (const PointData& point : study.points) {
    add_once(groups.sizes, point.size);
    add_once(groups.experts, point.experts);
    if (!point.done()) {
      continue;
    }
    auto cell = std::find_if(groups.cells.begin(), groups.cells.end(),
                             [&](const Cell& known) { return same_cell(known, point); });
    if (cell == groups.cells.end()) {
      groups.cells.push_back({point.size,
                              point.experts,
                              point.top_k,
                              point.granularity,
                              point.ranks,
                              point.capacity_factor,
                              point.layout,
                              {},
                              point.lr_factor});
      cell = std::prev(groups.cells.end());
    }
    cell->seeds.push_back(&point);
  }
  std::sort(groups.experts.begin(), groups.experts.end());
  groups.spread = spread_of(groups.cells);
  for (Cell& cell : groups.cells) {
    cell.tuned = std::none_of(groups.cells.begin(), groups.cells.end(), [&](const Cell& other) {
      const Maybe own = cell.mean(&PointData::loss), its = other.mean(&PointData::loss);
      return other.lr_factor != cell.lr_factor && differ_in_rate(other, cell) && its && (!own || *its < *own);
    });
  }
  const Variant main = main_variant(groups.cells);
  for (const Cell& cell : groups.cells) {
    // A dense twin has no choice of experts: its layout decides.
    const bool same_layout = cell.layout == std::get<3>(main) && cell.ranks == std::get<4>(main);
    const bool in_grid = cell.tuned && (cell.experts == 1 ? same_layout : variant_of(cell) == main);
    (in_grid ? groups.grid : groups.variants).push_back(&cell);
    if (in_grid && (groups.grid_text.empty() || cell.experts > 1)) {
      groups.grid_text = variant_name(cell);
    }
  }
  groups.of_pairs = spread_of_pairs(groups);
  return groups;
}

std::vector<const Cell*> Groups::of_size(const std::string& size) const {
  std::vector<const Cell*> some;
  std::copy_if(grid.begin(), grid.end(), std::back_inserter(some),
               [&](const Cell* cell) { return cell->size == size; });
  std::stable_sort(some.begin(), some.end(), [](const Cell* a, const Cell* b) { return a->experts < b->experts; });
  return some;
}

const Cell* Groups::twin_of(const Cell& cell) const {
  const Cell* twin = nullptr;
  for (const Cell& other : cells) {
    if (other.experts == 1 && other.size == cell.size && other.tuned) {
      const bool same_layout = other.layout == cell.layout && other.ranks == cell.ranks;
      twin = twin == nullptr || same_layout ? &other : twin;
    }
  }
  return twin;
}

std::optional<Interval> Groups::interval(const Cell& cell) const {
  const std::vector<double> losses = values_of(cell, &PointData::loss);
  if (losses.empty()) {
    return std::nullopt;
  }
  const double mean = *cell.mean(&PointData::loss);
  if (spread.degrees == 0) {
    return Interval{mean, mean, mean, true};
  }
  const double half =
      mean * t_quantile(spread.degrees) * spread.deviation / std::sqrt(static_cast<double>(losses.size()));
  return Interval{mean, mean - half, mean + half, losses.size() < 2};
}

std::optional<LossRatio> Groups::loss_ratio(const Cell& cell, const Cell& other) const {
  const std::vector<double> pairs = log_ratios(cell, other);
  const std::vector<double> a = values_of(cell, &PointData::loss), b = values_of(other, &PointData::loss);
  if (a.empty() || b.empty()) {
    return std::nullopt;
  }
  const bool paired = !pairs.empty() && of_pairs.degrees > 0;
  const double centre =
      paired ? mean_of(pairs) : std::log(*cell.mean(&PointData::loss) / *other.mean(&PointData::loss));
  const Spread& of = paired ? of_pairs : spread;
  LossRatio ratio{std::exp(centre), {}, {}, paired};
  if (of.degrees > 0) {
    const double n = paired ? 1 / static_cast<double>(pairs.size())
                            : 1 / static_cast<double>(a.size()) + 1 / static_cast<double>(b.size());
    const double half = t_quantile(of.degrees) * of.deviation * std::sqrt(n);
    ratio.low = std::exp(centre - half);
    ratio.high = std::exp(centre + half);
  }
  return ratio;
}

std::optional<Point> Groups::loss_point(const Cell& cell, double x) const {
  const std::optional<Interval> known = interval(cell);
  if (!known) {
    return std::nullopt;
  }
  Point point{x, known->mean};
  if (spread.degrees > 0) {
    point.interval = true;
    point.low = known->low;
    point.high = known->high;
    point.assumed = known->assumed;
  }
  return point;
}

std::string Groups::experts_colour(std::int64_t count) const {
  if (count == 1) {
    return "ink";
  }
  std::vector<std::int64_t> routed;
  std::copy_if(experts.begin(), experts.end(), std::back_inserter(routed), [](std::int64_t e) { return e > 1; });
  const auto place = std::find(routed.begin(), routed.end(), count) - routed.begin();
  return ordered_colour(static_cast<std::size_t>(place), routed.size());
}

std::string Groups::size_id(const std::string& size) const {
  const auto place = std::find(sizes.begin(), sizes.end(), size) - sizes.begin();
  return ids_of(sizes)[static_cast<std::size_t>(place)];
}

std::string Groups::size_colour(const std::string& size) const {
  return distinct_colour(static_cast<std::size_t>(std::find(sizes.begin(), sizes.end(), size) - sizes.begin()));
}

Marker Groups::size_marker(const std::string& size) const {
  return distinct_marker(static_cast<std::size_t>(std::find(sizes.begin(), sizes.end(), size) - sizes.begin()));
}

bool differ_in_rate(const Cell& a, const Cell& b) {
  return a.size == b.size && a.experts == b.experts && variant_of(a) == variant_of(b);
}

std::string experts_name(std::int64_t count) {
  return count == 1 ? "dense" : fmt::format("{} experts", count);
}

std::string variant_name(const Cell& cell) {
  std::string text;
  if (cell.experts > 1) {
    text =
        fmt::format("top-{}, {}", cell.top_k,
                    cell.capacity_factor == 0 ? "dropless" : fmt::format("capacity factor {}", cell.capacity_factor));
    text += cell.granularity != 1 ? fmt::format(", granularity {}", cell.granularity) : "";
    text += ", ";
  }
  text += cell.ranks == 1 ? "1 rank" : fmt::format("{} ranks", cell.ranks);
  text += cell.layout.empty() || cell.layout == "one" ? "" : " (" + cell.layout + ")";
  return text;
}

}  // namespace orthant::report
