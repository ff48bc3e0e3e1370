// What pictures share: the frame of an <svg>, text that fits, legends. Internal to this folder.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/report/plot.h"

namespace orthant::report {

inline constexpr double picture_width = 400;  // pixels of the viewBox: a phone shows 12 of them as about 11
inline constexpr double text_size = 12;

// About how wide a text is drawn; rather more than less.
double text_width(std::string_view text, double size = text_size);

// <svg ...><title><desc> ... of this height; `body` is what it shows.
std::string framed(const std::string& id, const std::string& title, const std::string& description, double height,
                   const std::string& body);

// anchor: "start", "middle", "end".
std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& css_class = "");

struct LegendItem {
  std::string name;
  std::string colour;
  Dash line = Dash::none;
  Marker marker = Marker::none;
  bool block = false;  // a filled square (bars)
};

// Rows of items from (0, top); returns the markup and its height. Names that are too long are shortened.
std::pair<std::string, double> legend(const std::vector<LegendItem>& items, double top);

std::string marker(Marker shape, double x, double y, double size, const std::string& title);

std::string dash_class(Dash dash);

// Ticks and lines of a horizontal axis below `bottom`, with its label; labels that would touch are left out.
std::string x_axis(const Scale& scale, const std::string& label, double left, double right, double top, double bottom);

}  // namespace orthant::report
