// Stacked bars and heat maps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/report/drawing.h"
#include "apps/report/markup.h"

namespace orthant::report {
namespace {

// What a bar shows of a value: nothing of what is negative, not finite or beyond any scale.
double drawn(double value) {
  return value > 0 && value < 1e200 ? value : 0;
}

double length(const StackedBar& bar) {
  double sum = 0;
  for (const double value : bar.values) {
    sum += drawn(value);
  }
  return sum;
}

// Upper ends of the classes of a ratio, and their names; the last class has no end.
constexpr std::array<double, 8> heat_ends = {0.05, 0.25, 0.5, 0.8, 1.25, 2, 4, 8};
constexpr std::array<const char*, 9> heat_names = {"0", "0.05", "¼", "½", "0.8", "1¼", "2", "4", "8+"};

std::size_t heat_class(double ratio) {
  return static_cast<std::size_t>(std::upper_bound(heat_ends.begin(), heat_ends.end(), ratio) - heat_ends.begin());
}

std::string heat_legend(const std::string& name, double top) {
  constexpr double cell = 28;
  std::string body = text_at(0, top + 11, "start", name, "label");
  const double left = picture_width - cell * static_cast<double>(heat_names.size()) - 8;
  for (std::size_t i = 0; i < heat_names.size(); ++i) {
    const double x = left + cell * static_cast<double>(i);
    body +=
        fmt::format("<rect class=\"h{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"10\"/>", i, x, top, cell);
    body += text_at(x, top + 23, "middle", heat_names[i], "tick small");
  }
  return body;
}

// One row: cells of one class that are neighbours are one rectangle.
std::string heat_row(const std::vector<double>& values, double left, double cell, double y, double height) {
  std::string body;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i + 1;
    const bool finite = std::isfinite(values[i]);
    while (end < values.size() && std::isfinite(values[end]) == finite &&
           (!finite || heat_class(values[end]) == heat_class(values[i]))) {
      ++end;
    }
    if (finite) {
      body += fmt::format("<rect class=\"h{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>",
                          heat_class(values[i]), left + cell * static_cast<double>(i), y,
                          cell * static_cast<double>(end - i), height);
    }
    i = end;
  }
  return body;
}

std::string joined(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += fmt::format("{}{:.4g}", text.empty() ? "" : " ", value);
  }
  return text;
}

}  // namespace

std::string svg(const BarChart& chart, const std::string& id) {
  constexpr double row = 26, thick = 16;
  std::vector<LegendItem> items;
  for (std::size_t part = 0; part < chart.parts.size(); ++part) {
    items.push_back({chart.parts[part], fmt::format("c{}", part % 8), Dash::none, Marker::none, true});
  }
  if (!chart.mark.empty()) {
    items.push_back({chart.mark, "ink", Dash::solid});
  }
  auto [body, top] = legend(items, 4);
  top += 8;
  double widest = 0, longest = 0;
  for (const StackedBar& bar : chart.bars) {
    widest = std::max(widest, text_width(shortened(bar.name, 22)));
    longest = std::max({longest, length(bar), drawn(bar.mark.value_or(0))});
  }
  const double left = widest + 10, right = picture_width - 12;
  const double bottom = top + row * static_cast<double>(chart.bars.size());
  Axis axis = chart.axis;
  axis.from_zero = true;
  const Scale scale(axis, 0, longest > 0 ? 1.03 * longest : 1, left, right, 5);
  body += x_axis(scale, chart.axis.label, left, right, top, bottom);
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const StackedBar& bar = chart.bars[i];
    const double y = top + row * static_cast<double>(i) + (row - thick) / 2;
    body += fmt::format("<g data-bar=\"{}\" data-values=\"{}\">", escaped(bar.name), fmt::join(bar.values, " "));
    body += text_at(left - 6, y + 12, "end", shortened(bar.name, 22), "tick");
    double at = 0;
    for (std::size_t part = 0; part < bar.values.size() && part < chart.parts.size(); ++part) {
      const double value = drawn(bar.values[part]);
      if (value == 0) {
        continue;
      }
      const double x = scale.at(at), end = scale.at(at + value);
      body += fmt::format(
          "<rect class=\"c{} fill edge\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"><title>{}: {} {}, {} "
          "of the bar</title></rect>",
          part % 8, x, y, end - x, thick, escaped(bar.name), escaped(chart.parts[part]),
          number_text(value / axis.divisor), fmt::format("{:.1f} %", 100 * value / length(bar)));
      at += value;
    }
    if (bar.mark && drawn(*bar.mark) > 0) {
      const double x = scale.at(*bar.mark);
      body += fmt::format("<path class=\"mark\" data-mark=\"{}\" d=\"M{:.1f} {:.1f}v{}\"><title>{} {}</title></path>",
                          *bar.mark, x, y - 4, thick + 8, escaped(chart.mark), number_text(*bar.mark / axis.divisor));
    }
    body += "</g>\n";
  }
  return framed(id, chart.title, chart.description, bottom + 42, body);
}

std::string svg(const HeatMaps& maps, const std::string& id) {
  double top = 6;
  std::string body = heat_legend(maps.legend, top);
  top += 40;
  double widest = text_width(maps.row_label);
  for (const HeatMap& map : maps.maps) {
    widest = std::max(widest, text_width(std::to_string(map.values.size())));
  }
  const double left = widest + 10, right = picture_width - 8;
  const double cell = (right - left) / static_cast<double>(std::max<std::size_t>(maps.columns.size(), 1));
  double bottom = top;
  for (const HeatMap& map : maps.maps) {
    const auto rows = static_cast<double>(map.values.size());
    const double height = std::clamp(120 / std::max(rows, 1.0), 2.0, 12.0);
    body += text_at(left, top + 10, "start", map.name, "tick") + "<g data-map=\"" + escaped(map.name) + "\">\n";
    top += 15;
    for (std::size_t i = 0; i < map.values.size(); ++i) {
      const double y = top + height * static_cast<double>(i);
      body += fmt::format("<g data-row=\"{}\" data-values=\"{}\"><title>{} {}, {}</title>", i, joined(map.values[i]),
                          escaped(maps.row_label), i, escaped(map.name));
      body += heat_row(map.values[i], left, cell, y, height) + "</g>\n";
    }
    body += "</g>\n";
    bottom = top + height * rows;
    body += text_at(left - 6, top + 9, "end", "0", "tick small");
    if (height * rows > 24) {
      body += text_at(left - 6, bottom, "end", std::to_string(map.values.size() - 1), "tick small");
    }
    if (height * rows > 44) {
      body += text_at(left - 6, (top + bottom) / 2 + 4, "end", maps.row_label, "tick small");
    }
    top = bottom + 8;
  }
  double used = 0;
  for (std::size_t i = 0; i < maps.columns.size(); ++i) {
    const double x = left + cell * (static_cast<double>(i) + 0.5), half = text_width(maps.columns[i]) / 2;
    if (x - half > used && x + half < picture_width) {
      body += text_at(x, bottom + 15, "middle", maps.columns[i], "tick");
      used = x + half + 24;
    }
  }
  body += text_at((left + right) / 2, bottom + 33, "middle", maps.column_label, "label");
  return framed(id, maps.title, maps.description, bottom + 41, body);
}

}  // namespace orthant::report
