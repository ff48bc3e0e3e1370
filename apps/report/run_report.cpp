#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/report/figures.h"
#include "apps/report/markup.h"
#include "apps/report/methods.h"
#include "apps/report/report.h"
#include "apps/report/run_figures.h"

namespace orthant {
namespace report {
namespace {

constexpr std::size_t most_names_in_title = 4;

// Runs of one name in two folders get their folder's name as well.
void make_names_unique(std::vector<RunData>& runs) {
  std::map<std::string, int> count;
  for (const RunData& run : runs) {
    ++count[run.name];
  }
  std::map<std::string, int> seen;
  for (RunData& run : runs) {
    if (count[run.name] > 1) {
      run.name = fmt::format("{} ({})", run.name, ++seen[run.name]);
    }
  }
  std::vector<std::string> names;
  std::transform(runs.begin(), runs.end(), std::back_inserter(names), [](const RunData& run) { return run.name; });
  const std::vector<std::string> ids = ids_of(names);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].id = ids[i];
  }
}

std::optional<double> median_of(const RunData& run, const char* key) {
  std::vector<double> values;
  for (const RunLine& line : run.lines) {
    const std::optional<double> value = run.number(line, key);
    if (value && line.step > 1) {  // the first step warms up
      values.push_back(*value);
    }
  }
  return median(values);
}

std::string time_text(double seconds) {
  const Unit unit = seconds_unit(seconds);
  return fmt::format("{:.4g} {}", seconds / unit.divisor, unit.name);
}

std::string bytes_text_or_missing(const std::optional<double>& bytes) {
  if (!bytes) {
    return "missing";
  }
  const Unit unit = bytes_unit(*bytes);
  return fmt::format("{:.4g} {}", *bytes / unit.divisor, unit.name);
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.2f} %", 100 * *share) : "missing";
}

void add_sets(const std::vector<RunData>& runs, Section& section) {
  Grid grid{{"run"}, {}};
  const std::vector<std::string> sets = validation_sets(runs);
  grid.head.insert(grid.head.end(), sets.begin(), sets.end());
  for (const RunData& run : runs) {
    std::vector<std::string>& row = grid.rows.emplace_back(1, run.name);
    for (const std::string& set : sets) {
      row.push_back(text_or_missing(last_of_set(run, set)));
    }
  }
  if (!sets.empty()) {
    section.table(grid, "The last loss of each validation set, in " + unit_of_losses(runs) + ".");
  }
}

void add_summary(const std::vector<RunData>& runs, Section& section) {
  Grid grid{{"run", "steps", "tokens", "parameters", "active", "loss", "validation loss", "unit", "bits per byte",
             "training time", "tokens/s", "most memory", "drops at the end"},
            {}};
  std::vector<std::string> commands;
  for (const RunData& run : runs) {
    const bool routed = std::any_of(run.lines.begin(), run.lines.end(),
                                    [](const RunLine& line) { return line.json.contains("expert_tokens"); });
    grid.rows.push_back(
        {run.name, run.lines.empty() ? "0" : std::to_string(run.lines.back().step), text_or_missing(run.last("tokens")),
         text_or_missing(run.parameters), text_or_missing(run.active_parameters), text_or_missing(run.last("loss")),
         text_or_missing(run.last("validation_loss")), run.unit.name.empty() ? "missing" : run.unit.name,
         text_or_missing(run.last("validation_bits_per_byte")),
         run.lines.empty() ? "missing" : time_text(run.lines.back().seconds),
         text_or_missing(median_of(run, "tokens_per_second")), bytes_text_or_missing(run.last("peak_bytes")),
         routed ? percent(run.last("drop_rate")) : "none"});
    commands.push_back(run.command());
  }
  section.table_with_commands(
      grid, commands,
      "Losses are the last that were logged, in the unit beside them; bits per byte are of what is held out. Tokens/s "
      "is the median of the logged steps after the first. The command below a run trains with its last settings "
      "again: an earlier run of its name is kept.");
  if (const std::string note = note_of_units(runs); !note.empty()) {
    section.paragraph(note, "note");
  }
  add_sets(runs, section);
  for (const RunData& run : runs) {
    section.list(run.notes, "note");
  }
}

void add_methods(const std::vector<RunData>& runs, Section& section) {
  for (const RunData& run : runs) {
    const std::string text = methods_of(run.settings, run.parameters, run.active_parameters, run.flops_per_token);
    if (!text.empty()) {
      section.heading(run.name);
      section.paragraph(text);
    }
  }
  if (runs.size() > 1) {
    const Grid grid = differences(runs);
    section.heading("Settings that differ");
    if (grid.rows.empty()) {
      section.paragraph("None but names and folders.");
    } else {
      section.table(grid, "An empty cell: the run has no such setting.");
    }
  }
}

std::string title_of(const std::vector<RunData>& runs) {
  std::string names;
  for (std::size_t i = 0; i < std::min(runs.size(), most_names_in_title); ++i) {
    names += (i > 0 ? ", " : "") + shortened(runs[i].name, 40);
  }
  const std::size_t more = runs.size() - std::min(runs.size(), most_names_in_title);
  return (runs.size() == 1 ? "Run " : "Runs ") + names + (more > 0 ? fmt::format(" and {} more", more) : "");
}

Page page_of(const std::vector<RunData>& runs) {
  Page page{title_of(runs),
            "Written by orthant report. Every picture has its numbers and a CSV file behind \"Numbers\".",
            {}};
  Section summary("summary", "Summary"), losses("loss", "Loss"), optimization("optimization", "Optimization"),
      load("load", "Load of the experts"), costs("costs", "Speed and memory"), timeline("timeline", "Timeline"),
      methods("methods", "Methods");
  add_summary(runs, summary);
  add_losses(runs, losses);
  add_optimization(runs, optimization);
  add_load(runs, load);
  add_costs(runs, costs);
  for (const RunData& run : runs) {
    add_routing(run, load);
    add_expert_use(run, load);
    add_timeline(run, timeline);
  }
  add_methods(runs, methods);
  page.sections = {summary, losses, optimization, load, costs, timeline, methods};
  return page;
}

}  // namespace
}  // namespace report

void write_run_report(std::span<const std::filesystem::path> runs, const std::filesystem::path& page) {
  if (runs.empty()) {
    throw ConfigError("a report is about at least one run: give the folders of runs");
  }
  std::vector<report::RunData> read;
  for (const std::filesystem::path& run : runs) {
    read.push_back(report::read_run(run));
  }
  report::make_names_unique(read);
  report::write_page(page, report::html(report::page_of(read)));
}

}  // namespace orthant
