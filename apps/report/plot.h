// Pictures: lines, points with error bars, bars and heat maps as SVG, drawn from values.
//
// A picture is one <svg> element with <title> and <desc>. Colours are classes of style.h, so that it follows the theme
// of the page that holds it. Each mark has its numbers with it: data-points on a line ("x,y" or "x,y,low,high", an open
// side is "?"), data-values on a bar or a row of a heat map, <title> on what can be pointed at. Numbers that are not
// finite are not drawn.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "apps/report/scale.h"

namespace orthant::report {

enum class Dash { solid, dashed, dotted, none };
enum class Marker { none, circle, square, triangle, diamond };

struct Point {
  double x = 0, y = 0;
  bool interval = false;                      // has one from low to high; a side without a value is open
  std::optional<double> low = {}, high = {};  // of y
  bool assumed = false;                       // the interval is drawn dashed
};

struct Series {
  std::string name;
  std::vector<Point> points;
  std::string colour;  // a class of style.h: "c0" .. "c7" to tell apart, "q0" .. "q7" in order, "ink"
  Dash line = Dash::solid;
  Marker marker = Marker::none;
  bool legend = true;
  bool faint = false;
  double shift = 0;              // pixels to the right, where bars would hide each other
  std::size_t marker_every = 1;  // a marker at one point in so many, from the first_marker-th on
  std::size_t first_marker = 0;
  bool band = false;  // intervals are a band behind the line instead of bars
};

// A horizontal line with a name.
struct Level {
  std::string name;
  double y = 0;
};

struct Plot {
  std::string title;        // read out, not drawn
  std::string description;  // read out
  Axis x, y;
  std::vector<Series> series;
  std::vector<Level> levels = {};
  std::vector<Series> keys = {};  // without points: what the legend shows instead of the series; empty: the series
};

struct StackedBar {
  std::string name;
  std::vector<double> values;       // one a part
  std::optional<double> mark = {};  // a line across the bar
};

// Horizontal bars, one below the other, each of the same parts.
struct BarChart {
  std::string title, description;
  Axis axis;
  std::vector<std::string> parts;
  std::vector<StackedBar> bars;
  std::string mark = {};  // what the marks are; empty: there are none
};

// Rows by columns; values are ratios to 1, coloured by how far they are from it.
struct HeatMap {
  std::string name;                         // drawn above it
  std::vector<std::vector<double>> values;  // [row][column]
};

// Small multiples, one below the other, over the same columns.
struct HeatMaps {
  std::string title, description;
  std::string row_label;             // "expert"
  std::string column_label;          // "step"
  std::vector<std::string> columns;  // what each stands for
  std::vector<HeatMap> maps;
  std::string legend;  // what the colours mean: "load / mean"
};

// The <svg> element; `id` makes its inner names unique in the page. `heading` is drawn above it.
// Colours of more than eight series begin again.
std::string svg(const Plot& plot, const std::string& id, const std::string& heading = "");
std::string svg(const BarChart& chart, const std::string& id);
std::string svg(const HeatMaps& maps, const std::string& id);

// Whether there is anything to draw.
bool has_points(const Plot& plot);

}  // namespace orthant::report
