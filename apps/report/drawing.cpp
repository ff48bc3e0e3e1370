#include "apps/report/drawing.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/report/markup.h"

namespace orthant::report {

double text_width(std::string_view text, double size) {
  return 0.64 * size * static_cast<double>(length_of(text));
}

std::string framed(const std::string& id, const std::string& title, const std::string& description, double height,
                   const std::string& body) {
  return fmt::format(
      "<svg class=\"picture\" id=\"{0}\" viewBox=\"0 0 {1} {2:.0f}\" role=\"img\" aria-labelledby=\"{0}-t {0}-d\" "
      "xmlns=\"http://www.w3.org/2000/svg\"><title id=\"{0}-t\">{3}</title><desc id=\"{0}-d\">{4}</desc>\n{5}</svg>\n",
      id, picture_width, height, escaped(title), escaped(description), body);
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& css_class) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y,
                     anchor == "start" ? "" : " text-anchor=\"" + anchor + "\"",
                     css_class.empty() ? "" : " class=\"" + css_class + "\"", escaped(text));
}

std::string dash_class(Dash dash) {
  return dash == Dash::dashed ? " dashed" : dash == Dash::dotted ? " dotted" : "";
}

std::string marker(Marker shape, double x, double y, double size, const std::string& title) {
  const std::string inside = title.empty() ? "" : "<title>" + escaped(title) + "</title>";
  switch (shape) {
    case Marker::none: return "";
    case Marker::circle:
      return fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\">{}</circle>", x, y, size,
                         inside);
    case Marker::square:
      return fmt::format("<path class=\"dot\" d=\"M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z\">{}</path>", x - size, y - size,
                         2 * size, 2 * size, -2 * size, inside);
    case Marker::triangle:
      return fmt::format("<path class=\"dot\" d=\"M{:.1f} {:.1f}l{:.1f} {:.1f}h{:.1f}z\">{}</path>", x, y - 1.3 * size,
                         1.3 * size, 2.2 * size, -2.6 * size, inside);
    case Marker::diamond:
      return fmt::format(
          "<path class=\"dot\" d=\"M{:.1f} {:.1f}l{:.1f} {:.1f}l{:.1f} {:.1f}l{:.1f} {:.1f}z\">{}</path>", x,
          y - 1.4 * size, 1.4 * size, 1.4 * size, -1.4 * size, 1.4 * size, -1.4 * size, -1.4 * size, inside);
  }
  return "";
}

std::pair<std::string, double> legend(const std::vector<LegendItem>& items, double top) {
  constexpr double row = 17, swatch = 24, gap = 14;
  std::string body;
  double x = 0, y = top + 12;
  for (const LegendItem& item : items) {
    const std::string name = shortened(item.name, 44);
    const double width = swatch + text_width(name);
    if (x > 0 && x + width > picture_width) {
      x = 0;
      y += row;
    }
    body += fmt::format("<g class=\"{}\">", item.colour);
    if (item.block) {
      body += fmt::format("<rect class=\"fill\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\"/>", x + 4, y - 10);
    }
    if (item.line != Dash::none) {
      body += fmt::format("<path class=\"line{}\" d=\"M{:.1f} {:.1f}h18\"/>", dash_class(item.line), x, y - 4);
    }
    body += marker(item.marker, x + 9, y - 4, 3.2, "") + text_at(x + swatch - 2, y, "start", name) + "</g>\n";
    x += width + gap;
  }
  return {body, items.empty() ? 0 : y + 8 - top};
}

std::string x_axis(const Scale& scale, const std::string& label, double left, double right, double top, double bottom) {
  std::string body;
  const std::vector<std::string> labels = scale.labels();
  double used = -1e9;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const double x = scale.at(scale.ticks()[i]), half = text_width(labels[i]) / 2;
    const double place = std::clamp(x, half, picture_width - half);
    body += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", x, top, bottom);
    if (place - half > used) {
      body += text_at(place, bottom + 16, "middle", labels[i], "tick");
      used = place + half + 6;
    }
  }
  const double half = std::min(text_width(label), picture_width) / 2;
  return body +
         text_at(std::clamp((left + right) / 2, half, picture_width - half), bottom + 34, "middle", label, "label");
}

}  // namespace orthant::report
