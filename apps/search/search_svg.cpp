#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "apps/search/search_output.h"

namespace orthant::search {
namespace {

constexpr double width = 900, left = 70, right = 20, top = 60, plot_height = 380, row = 22;
constexpr double giga = 1e9;

// A logarithmic axis.
struct LogAxis {
  double least = 1, most = 2, from = 0, to = 1;  // values, and pixels
  double at(double value) const { return from + (to - from) * std::log(value / least) / std::log(most / least); }
};

struct Range {
  double least = 1e300, most = 0;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

double value_of(int cell) {
  return std::exp2((cell + 0.5) / cells_a_factor_two);
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return safe;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

// Ticks at 1, 2 and 5 of each power of ten.
std::string ticks(const LogAxis& axis, bool across, double unit, const char* name) {
  std::string svg;
  for (int power = -12; power <= 15; ++power) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power) * unit;
      if (value < axis.least || value > axis.most) {
        continue;
      }
      const double at = axis.at(value);
      svg += across ? text_at(at, top + plot_height + 16, fmt::format("{:g} {}", value / unit, name), "middle")
                    : text_at(left - 6, at + 4, fmt::format("{:g} {}", value / unit, name), "end");
      svg += across ? fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#dddddd\"/>\n",
                                  at, top, top + plot_height)
                    : fmt::format("<line y1=\"{0:.1f}\" y2=\"{0:.1f}\" x1=\"{1}\" x2=\"{2}\" stroke=\"#dddddd\"/>\n",
                                  at, left, width - right);
    }
  }
  return svg;
}

std::string layouts_svg(const Shown& shown) {
  const Answer& answer = shown.answer;
  Range seconds, bytes;
  bytes.add(shown.problem.memory);
  for (const auto& [cell, count] : answer.bounded) {
    seconds.add(value_of(cell.time));
    bytes.add(value_of(cell.memory));
  }
  for (const auto& [time, memory] : answer.timed) {
    seconds.add(time);
    bytes.add(memory);
  }
  const LogAxis x{bytes.least / 1.1, bytes.most * 1.1, left, width - right};
  const LogAxis y{seconds.least / 1.1, seconds.most * 1.1, top + plot_height, top};
  std::string svg = ticks(x, true, giga, "GB") + ticks(y, false, 1, "s");
  std::uint64_t most = 1;
  for (const auto& [cell, count] : answer.bounded) {
    most = std::max(most, count);
  }
  const double step = std::exp2(0.5 / cells_a_factor_two);
  for (const auto& [cell, count] : answer.bounded) {
    const double time = value_of(cell.time), memory = value_of(cell.memory);
    const double shade = 0.15 + 0.75 * std::log1p(static_cast<double>(count)) / std::log1p(static_cast<double>(most));
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#888888\" "
        "fill-opacity=\"{:.2f}\"/>\n",
        x.at(memory / step), y.at(time * step), x.at(memory * step) - x.at(memory / step),
        y.at(time / step) - y.at(time * step), shade);
  }
  std::set<std::pair<int, int>> drawn;
  for (const auto& [time, memory] : answer.timed) {
    const std::pair<int, int> at(static_cast<int>(x.at(memory)), static_cast<int>(y.at(time)));
    if (drawn.insert(at).second) {
      svg += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"1.6\" fill=\"#1f6fd0\"/>\n", at.first, at.second);
    }
  }
  std::string line;
  for (const Timed& one : answer.frontier) {
    line += fmt::format("{:.1f},{:.1f} ", x.at(one.memory.total()), y.at(one.time.seconds));
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#d03030\"><title>{} s, {:.3g} GB: {}</title>"
        "</circle>\n",
        x.at(one.memory.total()), y.at(one.time.seconds), fmt::format("{:.4g}", one.time.seconds),
        one.memory.total() / giga, text_of(one.candidate));
  }
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#d03030\" stroke-width=\"1.5\"/>\n", line);
  return svg + fmt::format(
                   "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#222222\" "
                   "stroke-dasharray=\"5 4\"><title>what a rank may have</title></line>\n",
                   x.at(shown.problem.memory), top, top + plot_height);
}

// Of the best layout: one round of micro-batches more than its stages need before it repeats itself.
std::string timeline_svg(const Shown& shown, double from) {
  const Timed& best = shown.answer.best.front();
  const cost::Layout layout = layout_of(shown.problem, best.candidate);
  const int all = static_cast<int>(layout.micro_batches());
  const int drawn = std::min(all, 3 * layout.pipeline + (layout.pipeline == 1 ? 5 : 0));
  const cost::PassTimes times =
      cost::pass_times(shown.problem.model, layout, shown.problem.machine, shown.problem.practice);
  const cost::Duration duration = [&](cost::Pass pass, int piece, int) {
    return times.passes[static_cast<std::size_t>(pass)][static_cast<std::size_t>(piece)];
  };
  const cost::ClockResult result =
      cost::run_clock(shown.problem.programs(layout, drawn), duration, times.message, true);
  const double scale = (width - left - right) / result.seconds;
  std::string svg = text_at(left, from - 8,
                            fmt::format("{}: {} of {} micro-batches, {:.3g} s; blue: forward, green: backward",
                                        text_of(best.candidate), drawn, all, result.seconds));
  for (std::size_t stage = 0; stage < result.timeline.size(); ++stage) {
    const double y = from + row * static_cast<double>(stage);
    svg += text_at(left - 6, y + 14, fmt::format("stage {}", stage), "end");
    svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#eeeeee\"/>\n", left, y,
                       width - left - right, row - 4);
    for (const cost::Slot& slot : result.timeline[stage]) {
      const int light = 62 + 28 * slot.task.chunk / layout.chunks;  // later chunks are lighter
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"hsl({},60%,{}%)\" "
          "stroke=\"white\" stroke-width=\"0.4\"/>\n",
          left + slot.begin * scale, y, (slot.end - slot.begin) * scale, row - 4,
          slot.task.pass == cost::Pass::forward ? 210 : 130, light);
    }
  }
  return svg;
}

}  // namespace

std::string answer_svg(const Shown& shown) {
  const bool any = !shown.answer.best.empty();
  const double stages = any ? shown.answer.best.front().candidate.pipeline : 0;
  const double under = top + plot_height + 70, height = under + stages * row + 10;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  svg += text_at(
      8, 20,
      fmt::format("{} on {} ranks of {}: seconds of a step against bytes of a rank, {} layouts", shown.configuration,
                  shown.problem.base.ranks, shown.problem.machine.name, shown.answer.counts.legal));
  svg +=
      text_at(8, 38,
              "grey: all layouts, at the time and the bytes that each has at least; blue: those that were timed; red: "
              "the frontier; dashed: what a rank may have");
  svg += layouts_svg(shown);
  return svg + (any ? timeline_svg(shown, under) : "") + "</svg>\n";
}

}  // namespace orthant::search
