// From values to figures: a picture with the same numbers as a table.
#pragma once

#include <string>
#include <vector>

#include "apps/report/page.h"
#include "apps/report/plot.h"

namespace orthant::report {

// `id` names the figure; the plot's title is the figure's. Its data: one row a point.
Figure figure_of(const Plot& plot, const std::string& id, const std::string& caption, const std::string& command);
// One row a bar.
Figure figure_of(const BarChart& chart, const std::string& id, const std::string& caption, const std::string& command);
// One row a row of a map.
Figure figure_of(const HeatMaps& maps, const std::string& id, const std::string& caption, const std::string& command);

inline constexpr std::size_t most_line_points = 300;  // a picture shows no more of a line

// Bars of several series at one place stand side by side.
void spread_bars(Plot& plot);

// Evenly chosen points, the first and the last among them.
std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most);

// A colour for the i-th of `count` things in an order, and for the i-th of things to tell apart.
std::string ordered_colour(std::size_t i, std::size_t count);
std::string distinct_colour(std::size_t i);

// For ids of figures, of different names that may be anybody's: "switch-16" of "switch 16", each another.
std::vector<std::string> ids_of(const std::vector<std::string>& names);

Marker distinct_marker(std::size_t i);

// The shortest text that reads back as the same number.
std::string exact_text(double value);

// "missing" where there is no value.
std::string text_or_missing(const std::optional<double>& value);

// Median of a copy; nothing where there are none.
std::optional<double> median(std::vector<double> values);

}  // namespace orthant::report
