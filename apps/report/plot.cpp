#include "apps/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/report/drawing.h"
#include "apps/report/markup.h"

namespace orthant::report {
namespace {

constexpr double plot_height = 200;  // of the area between the axes

bool drawable(double value, const Axis& axis) {
  const double size = std::abs(value);  // of what is neither, a range has no meaning in fp64
  return size < 1e200 && (axis.kind == ScaleKind::linear || value > 1e-200);
}

bool drawable(const Point& p, const Plot& plot) {
  return drawable(p.x, plot.x) && drawable(p.y, plot.y);
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// A little room beside the marks, but none beyond a zero where the axis begins.
Range with_room(Range range, const Axis& axis, double share) {
  if (axis.kind == ScaleKind::logarithmic) {
    const double factor = std::pow(range.high / range.low, share);
    return {range.low / factor, range.high * factor};
  }
  const double room = share * (range.high - (axis.from_zero ? std::min(range.low, 0.0) : range.low));
  const bool at_zero = axis.from_zero && range.low >= 0;
  return {at_zero ? range.low : range.low - room, range.high + room};
}

std::string shown(double value, const Axis& axis) {
  return number_text(value / axis.divisor);
}

// Distances on a logarithmic axis are ratios: it says so.
std::string drawn_label(const Axis& axis) {
  return axis.kind == ScaleKind::logarithmic && !axis.label.empty() ? axis.label + ", log scale" : axis.label;
}

std::string tip(const Series& s, const Point& p, const Plot& plot) {
  std::string text = s.name.empty() ? "" : s.name + ": ";
  text += fmt::format("{} {}, {} {}", plot.x.label, shown(p.x, plot.x), plot.y.label, shown(p.y, plot.y));
  if (p.interval) {
    text += fmt::format(" [{}, {}]", p.low ? shown(*p.low, plot.y) : "open", p.high ? shown(*p.high, plot.y) : "open");
  }
  return text;
}

std::string data_points(const Series& s, const Plot& plot) {
  std::string text;
  for (const Point& p : s.points) {
    if (drawable(p, plot)) {
      text += fmt::format("{}{},{}", text.empty() ? "" : " ", p.x, p.y);
      if (p.interval) {
        text +=
            fmt::format(",{},{}", p.low ? fmt::format("{}", *p.low) : "?", p.high ? fmt::format("{}", *p.high) : "?");
      }
    }
  }
  return text;
}

class Area {
 public:
  Area(const Plot& plot, const Scale& x, const Scale& y, double top, double bottom)
      : plot_(plot), x_(x), y_(y), top_(top), bottom_(bottom) {}

  std::string draw(const Series& s) const {
    std::string body = fmt::format("<g class=\"{}{}\" data-series=\"{}\" data-points=\"{}\">\n", s.colour,
                                   s.faint ? " faint" : "", escaped(s.name), data_points(s, plot_));
    body += s.band ? band(s) : "";
    if (s.line != Dash::none) {
      body += line(s);
    }
    for (std::size_t i = 0; i < s.points.size(); ++i) {
      const Point& p = s.points[i];
      if (drawable(p, plot_)) {
        body += p.interval && !s.band ? bar(s, p) : "";
        const Marker shape = i % s.marker_every == s.first_marker % s.marker_every ? s.marker : Marker::none;
        body += marker(shape, x_.at(p.x) + s.shift, y_.at(p.y), s.faint ? 2 : 3.2, tip(s, p, plot_));
      }
    }
    return body + "</g>\n";
  }

 private:
  // Broken where a number is missing.
  std::string line(const Series& s) const {
    std::string path;
    bool open = false;
    for (const Point& p : s.points) {
      if (drawable(p, plot_)) {
        path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", x_.at(p.x) + s.shift, y_.at(p.y));
      }
      open = drawable(p, plot_);
    }
    return path.empty() ? "" : fmt::format("<path class=\"line{}\" d=\"{}\"/>\n", dash_class(s.line), path);
  }

  // Between the intervals' ends; broken where a point has none.
  std::string band(const Series& s) const {
    std::string paths, upper, lower;
    const auto close = [&] {
      paths += upper.empty() ? "" : fmt::format("<path class=\"band\" d=\"M{}{}Z\"/>\n", upper.substr(1), lower);
      upper.clear();
      lower.clear();
    };
    for (const Point& p : s.points) {
      if (!drawable(p, plot_) || !p.low || !p.high || !drawable(*p.low, plot_.y) || !drawable(*p.high, plot_.y)) {
        close();
        continue;
      }
      const double x = x_.at(p.x) + s.shift;
      upper += fmt::format("L{:.1f} {:.1f}", x, y_.at(*p.high));
      lower = fmt::format("L{:.1f} {:.1f}", x, y_.at(*p.low)) + lower;
    }
    close();
    return paths;
  }

  std::string bar(const Series& s, const Point& p) const {
    const double x = x_.at(p.x) + s.shift;
    const bool low_drawn = p.low && drawable(*p.low, plot_.y), high_drawn = p.high && drawable(*p.high, plot_.y);
    const double from = std::min(low_drawn ? y_.at(*p.low) : bottom_, bottom_);
    const double to = std::max(high_drawn ? y_.at(*p.high) : top_, top_);
    std::string caps = low_drawn && from < bottom_ ? fmt::format("M{:.1f} {:.1f}h6", x - 3, from) : "";
    caps += high_drawn && to > top_ ? fmt::format("M{:.1f} {:.1f}h6", x - 3, to) : "";
    const bool open = p.assumed || !p.low || !p.high;
    return fmt::format("<path class=\"bar{}\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>", open ? " dotted" : "", x, from, to) +
           (caps.empty() ? "" : "<path class=\"bar\" d=\"" + caps + "\"/>");
  }

  const Plot& plot_;
  const Scale& x_;
  const Scale& y_;
  double top_, bottom_;
};

std::string y_axis(const Scale& scale, double left, double right) {
  std::string body;
  const std::vector<std::string> labels = scale.labels();
  double used = INFINITY;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const double y = scale.at(scale.ticks()[i]);
    body += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left, y, right);
    if (y < used) {
      body += text_at(left - 6, y + 4, "end", labels[i], "tick");
      used = y - 14;
    }
  }
  return body;
}

std::vector<LegendItem> legend_of(const Plot& plot) {
  std::vector<LegendItem> items;
  for (const Series& s : plot.keys.empty() ? plot.series : plot.keys) {
    if (s.legend && !s.name.empty()) {
      items.push_back({s.name, s.colour, s.line, s.marker});
    }
  }
  constexpr std::size_t most = 20;
  if (items.size() > most) {
    const std::size_t more = items.size() - most;
    items.resize(most);
    items.push_back({fmt::format("and {} more", more), "ink"});
  }
  return items;
}

bool in_picture(const Level& level, const Plot& plot, const Scale& y) {
  return drawable(level.y, plot.y) && level.y >= y.low() && level.y <= y.high();
}

std::string lines_of_levels(const Plot& plot, const Scale& y, double left, double right) {
  std::string body;
  for (const Level& level : plot.levels) {
    if (in_picture(level, plot, y)) {
      body += fmt::format("<path class=\"level\" data-level=\"{}\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", level.y, left,
                          y.at(level.y), right);
    }
  }
  return body;
}

// Above all lines, which may cross them.
std::string names_of_levels(const Plot& plot, const Scale& y, double right, double top) {
  std::string body;
  for (const Level& level : plot.levels) {
    if (in_picture(level, plot, y) && !level.name.empty()) {
      const double at = y.at(level.y);
      body += text_at(right - 4, at - 4 < top + 10 ? at + 13 : at - 4, "end", level.name, "tick halo");
    }
  }
  return body;
}

}  // namespace

bool has_points(const Plot& plot) {
  return std::any_of(plot.series.begin(), plot.series.end(), [&](const Series& s) {
    return std::any_of(s.points.begin(), s.points.end(), [&](const Point& p) { return drawable(p, plot); });
  });
}

std::string svg(const Plot& plot, const std::string& id, const std::string& heading) {
  Range xs, ys;
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) {
      if (drawable(p, plot)) {
        xs.add(p.x);
        ys.add(p.y);
        for (const std::optional<double>& side : {p.low, p.high}) {
          if (p.interval && side && drawable(*side, plot.y)) {
            ys.add(*side);
          }
        }
      }
    }
  }
  double top = 4;
  std::string body;
  if (!heading.empty()) {
    body += text_at(0, top + 11, "start", heading, "heading");
    top += 22;
  }
  if (!has_points(plot)) {
    body += text_at(picture_width / 2, top + 24, "middle", "no numbers to show", "label");
    return framed(id, plot.title, plot.description, top + 40, body);
  }
  for (const Level& level : plot.levels) {
    if (drawable(level.y, plot.y)) {
      ys.add(level.y);
    }
  }
  xs = with_room(xs, plot.x, 0.02);
  ys = with_room(ys, plot.y, 0.06);
  const std::vector<LegendItem> items = legend_of(plot);
  if (!items.empty()) {
    const auto [markup, height] = legend(items, top);
    body += markup;
    top += height;
  }
  body += text_at(0, top + 11, "start", drawn_label(plot.y), "label");
  top += 24;
  const double bottom = top + plot_height, right = picture_width - 8;
  const Scale y(plot.y, ys.low, ys.high, bottom, top, 5);
  double widest = 0;
  for (const std::string& label : y.labels()) {
    widest = std::max(widest, text_width(label));
  }
  const double left = std::max(28.0, widest + 10);
  double room = 0;  // of marks that stand beside their place
  for (const Series& s : plot.series) {
    room = std::max(room, s.shift == 0 ? 0 : std::abs(s.shift) + 5);
  }
  const Scale x(plot.x, xs.low, xs.high, left + room, right - room, 6);
  body += y_axis(y, left, right) + x_axis(x, drawn_label(plot.x), left, right, top, bottom);
  body += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>\n", left, top, bottom, right);
  body += lines_of_levels(plot, y, left, right);
  const Area area(plot, x, y, top, bottom);
  for (const Series& s : plot.series) {
    body += area.draw(s);
  }
  body += names_of_levels(plot, y, right, top);
  return framed(id, plot.title, plot.description, bottom + 42, body);
}

}  // namespace orthant::report
