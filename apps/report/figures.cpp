#include "apps/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "apps/report/scale.h"

namespace orthant::report {

std::string exact_text(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "not finite";
}

std::string text_or_missing(const std::optional<double>& value) {
  return value ? number_text(*value) : "missing";
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) {
    return std::nullopt;
  }
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string ordered_colour(std::size_t i, std::size_t count) {
  const double place = count < 2 ? 2.0 : 7.0 * static_cast<double>(i) / static_cast<double>(count - 1);
  return fmt::format("q{:.0f}", std::round(place));
}

std::string distinct_colour(std::size_t i) {
  return fmt::format("c{}", i % 8);
}

std::vector<std::string> ids_of(const std::vector<std::string>& names) {
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    std::string id;
    for (const char c : name) {
      const bool plain = static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) != 0;
      id += plain ? c : '-';
    }
    while (id.empty() || std::find(ids.begin(), ids.end(), id) != ids.end()) {
      id += fmt::format("-{}", ids.size() + 1);
    }
    ids.push_back(id);
  }
  return ids;
}

Marker distinct_marker(std::size_t i) {
  constexpr Marker all[] = {Marker::circle, Marker::square, Marker::triangle, Marker::diamond};
  return all[i % 4];
}

void spread_bars(Plot& plot) {
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    plot.series[i].shift = 7 * (static_cast<double>(i) - (static_cast<double>(plot.series.size()) - 1) / 2);
  }
}

std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most) {
  if (points.size() <= most || most < 2) {
    return points;
  }
  std::vector<Point> some;
  for (std::size_t i = 0; i < most; ++i) {
    some.push_back(points[i * (points.size() - 1) / (most - 1)]);
  }
  return some;
}

Figure figure_of(const Plot& plot, const std::string& id, const std::string& caption, const std::string& command) {
  Figure figure{id, plot.title, svg(plot, id + "-picture"), caption, command, {}};
  bool intervals = false;
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) {
      intervals = intervals || p.interval;
    }
  }
  // The unit in a label is the drawn one; the table has the numbers themselves.
  const auto column = [](const Axis& axis) {
    return axis.divisor == 1 ? axis.label : axis.label.substr(0, axis.label.rfind('(')) + "(" + axis.data_unit + ")";
  };
  figure.data.head = {"series", column(plot.x), column(plot.y)};
  if (intervals) {
    figure.data.head.insert(figure.data.head.end(), {"low", "high"});
  }
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) {
      std::vector<std::string> row = {s.name, exact_text(p.x), exact_text(p.y)};
      if (intervals) {
        row.push_back(!p.interval ? "" : p.low ? exact_text(*p.low) : "open");
        row.push_back(!p.interval ? "" : p.high ? exact_text(*p.high) : "open");
      }
      figure.data.rows.push_back(row);
    }
  }
  return figure;
}

Figure figure_of(const BarChart& chart, const std::string& id, const std::string& caption, const std::string& command) {
  Figure figure{id, chart.title, svg(chart, id + "-picture"), caption, command, {}};
  figure.data.head = {chart.axis.data_unit.empty() ? "bar" : "bar (" + chart.axis.data_unit + ")"};
  figure.data.head.insert(figure.data.head.end(), chart.parts.begin(), chart.parts.end());
  if (!chart.mark.empty()) {
    figure.data.head.push_back(chart.mark);
  }
  for (const StackedBar& bar : chart.bars) {
    std::vector<std::string> row = {bar.name};
    std::transform(bar.values.begin(), bar.values.end(), std::back_inserter(row), exact_text);
    if (!chart.mark.empty()) {
      row.push_back(bar.mark ? exact_text(*bar.mark) : "missing");
    }
    figure.data.rows.push_back(row);
  }
  return figure;
}

Figure figure_of(const HeatMaps& maps, const std::string& id, const std::string& caption, const std::string& command) {
  Figure figure{id, maps.title, svg(maps, id + "-picture"), caption, command, {}};
  figure.data.head = {"map", maps.row_label};
  for (const std::string& column : maps.columns) {
    figure.data.head.push_back(maps.column_label + " " + column);
  }
  for (const HeatMap& map : maps.maps) {
    for (std::size_t i = 0; i < map.values.size(); ++i) {
      std::vector<std::string> row = {map.name, std::to_string(i)};
      for (const double value : map.values[i]) {
        row.push_back(std::isfinite(value) ? fmt::format("{:.4g}", value) : "");
      }
      figure.data.rows.push_back(row);
    }
  }
  return figure;
}

}  // namespace orthant::report
