#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

#include "apps/report/markup.h"
#include "apps/report/plot.h"
#include "apps/report/style.h"
#include "bench/hindcast/hindcast.h"

namespace orthant::hindcast {
namespace {

// A picture of a page becomes a file by itself, with the colours in it and room around it.
std::string file_of(const std::string& picture) {
  const std::size_t end = picture.find('>');
  std::string head = picture.substr(0, end);
  if (head.find("xmlns=") == std::string::npos) {
    head.insert(4, " xmlns=\"http://www.w3.org/2000/svg\"");
  }
  const std::string box = "viewBox=\"0 0 ";
  double width = 0, height = 0;
  if (const std::size_t at = head.find(box); at != std::string::npos) {
    const char* const last = head.data() + head.size();
    const char* const between = std::from_chars(head.data() + at + box.size(), last, width).ptr;
    const char* const behind = between == last ? last : std::from_chars(between + 1, last, height).ptr;
    constexpr double room = 8;
    head.replace(at, static_cast<std::size_t>(behind - head.data()) - at,
                 fmt::format("viewBox=\"{0:g} {0:g} {1:g} {2:g}", -room, width + 2 * room, height + 2 * room));
  }
  return fmt::format(
      "{}>\n<style>{}</style>\n<rect x=\"-8\" y=\"-8\" width=\"100%\" height=\"100%\" fill=\"var(--back)\"/>{}\n", head,
      report::picture_style, picture.substr(end + 1));
}

std::string file_name(const std::string& source) {
  std::string name;
  for (const char c : source) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (!name.empty() && name.back() == '_') {
    name.pop_back();
  }
  return name + ".svg";
}

struct Points {
  std::map<std::string, std::vector<report::Point>> of_machine;
  double low = 0, high = 0;

  void add(const std::string& machine, double measured, double predicted) {
    of_machine[machine].push_back({.x = measured, .y = predicted});
    const auto [least, most] = std::minmax(measured, predicted);
    low = low == 0 ? least : std::min(low, least);
    high = std::max(high, most);
  }
};

std::string scatter(const std::string& source, const std::string& what, double divisor, const Points& points) {
  report::Plot plot{
      .title = source,
      .description = fmt::format("{} of {}, predicted against measured, one point a run; on the line both are equal",
                                 what, source),
      .x = {.label = "measured " + what, .kind = report::ScaleKind::logarithmic, .divisor = divisor},
      .y = {.label = "predicted " + what, .kind = report::ScaleKind::logarithmic, .divisor = divisor},
      .series = {}};
  plot.series.push_back({.name = "equal",
                         .points = {{.x = points.low, .y = points.low}, {.x = points.high, .y = points.high}},
                         .colour = "ink",
                         .line = report::Dash::dashed,
                         .faint = true});
  int colour = 0;
  for (const auto& [machine, list] : points.of_machine) {
    plot.series.push_back({.name = machine,
                           .points = list,
                           .colour = fmt::format("c{}", colour++ % 8),
                           .line = report::Dash::none,
                           .marker = report::Marker::circle});
  }
  return file_of(report::svg(plot, "scatter", source));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> pictures_of(const Hindcast& result) {
  std::map<std::string, Points> seconds, bytes;
  for (const Prediction& one : result.predictions) {
    if (one.row.seconds) {
      seconds[one.row.source].add(one.row.machine, *one.row.seconds, one.seconds);
    }
    if (one.row.peak_bytes) {
      bytes[one.row.source].add(one.row.machine, *one.row.peak_bytes, one.peak_bytes);
    }
  }
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [source, points] : seconds) {
    files.emplace_back(file_name(source), scatter(source, "step time (s)", 1, points));
  }
  for (const auto& [source, points] : bytes) {
    files.emplace_back(file_name(source + " memory"), scatter(source, "peak memory (GB)", 1e9, points));
  }
  return files;
}

}  // namespace orthant::hindcast
