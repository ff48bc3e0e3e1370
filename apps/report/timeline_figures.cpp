// Where the time of traced steps went.
#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>

#include "apps/report/figures.h"
#include "apps/report/read_json.h"
#include "apps/report/run_figures.h"

namespace orthant::report {
namespace {

struct Part {
  const char* key;
  const char* name;
};
constexpr Part parts[] = {{"compute", "compute"},
                          {"exposed", "exposed communication"},
                          {"waiting", "waiting for a rank"},
                          {"bubble", "pipeline bubble"},
                          {"other", "other"}};

// The longest few of a rank's operations or of the ranks it waited for: "gemm 12 ms, ...".
std::string longest_of(const Json& seconds, const std::string& where, const std::string& before) {
  std::vector<std::pair<double, std::string>> all;
  if (!seconds.is_null()) {
    for (const auto& [name, value] : seconds.items()) {
      all.emplace_back(number_of(value, where + ": '" + name + "'").value_or(0), name);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 4); ++i) {
    text += fmt::format("{}{}{} {:.3g} ms", text.empty() ? "" : ", ", before, all[i].second, 1e3 * all[i].first);
  }
  return text;
}

}  // namespace

void add_timeline(const RunData& run, Section& section) {
  if (run.trace.is_null()) {
    return;
  }
  const std::string where = (run.folder / "trace" / "summary.json").string();
  const Json& ranks = list_at(run.trace, "ranks", where);
  BarChart chart{"Where the time of a step went, " + run.name,
                 "A bar a rank: seconds of a traced step by what the rank did.",
                 {},
                 {},
                 {}};
  for (const Part& part : parts) {
    chart.parts.emplace_back(part.name);
  }
  Grid details{{"rank", "overlapped communication", "waited for", "longest operations"}, {}};
  double most = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string here = fmt::format("{}: rank entry {}", where, i);
    const double number = number_at(ranks[i], "rank", here).value_or(static_cast<double>(i));
    StackedBar bar{fmt::format("rank {}", number), {}};
    double sum = 0;
    for (const Part& part : parts) {
      bar.values.push_back(number_at(ranks[i], part.key, here).value_or(0));
      sum += std::max(bar.values.back(), 0.0);
    }
    most = std::max(most, sum);
    chart.bars.push_back(bar);
    const std::optional<double> overlapped = number_at(ranks[i], "overlapped", here);
    details.rows.push_back({fmt::format("{}", number),
                            overlapped ? fmt::format("{:.3g} ms", 1e3 * *overlapped) : "missing",
                            longest_of(object_at(ranks[i], "waiting_for", here), here, "rank "),
                            longest_of(object_at(ranks[i], "operations", here), here, "")});
  }
  if (chart.bars.empty()) {
    return;
  }
  const Unit unit = seconds_unit(most);
  chart.axis = {.label = "time of a step (" + unit.name + ")", .divisor = unit.divisor, .data_unit = unit.base};
  const Json& steps = list_at(run.trace, "steps", where);
  std::string caption =
      "Seconds of a step by what the rank did. Communication that is overlapped runs beside it, and stands in the "
      "table.";
  if (steps.size() == 2) {
    caption +=
        fmt::format(" Steps {} to {}.", number_of(steps[0], where).value_or(0), number_of(steps[1], where).value_or(0));
  }
  section.figure(figure_of(chart, "timeline-" + run.id, caption, run.command()));
  const std::optional<double> late = number_at(run.trace, "late_rank", where);
  const std::string why = text_or_empty(run.trace, "why", where);
  // The reason says who is late, where this program wrote it.
  const std::string who = late ? fmt::format("rank {} is late", *late) : "";
  if (late || !why.empty()) {
    section.paragraph(run.name + ": " + (late && !why.starts_with(who) ? who + ". " : "") + why);
  }
  section.table(details, "Time by operation, " + run.name, true);
}

}  // namespace orthant::report
