// What a study found in words and tables: the verdict, the points, the methods.
#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <set>

#include "apps/report/figures.h"
#include "apps/report/markup.h"
#include "apps/report/methods.h"
#include "apps/report/study_figures.h"

namespace orthant::report {
namespace {

std::size_t count_of(const StudyData& study, const std::string& status) {
  return static_cast<std::size_t>(std::count_if(study.points.begin(), study.points.end(),
                                                [&](const PointData& point) { return point.status == status; }));
}

std::string with_unit(const Maybe& value, Unit (*unit_of)(double)) {
  if (!value) {
    return "missing";
  }
  const Unit unit = unit_of(*value);
  return fmt::format("{:.4g} {}", *value / unit.divisor, unit.name);
}

// The median of the rounds, and their range.
std::string step_text(const PointData& point) {
  const std::string text = with_unit(point.step_seconds, seconds_unit);
  if (!point.step_seconds || point.rounds.size() < 2) {
    return text;
  }
  const auto [low, high] = std::minmax_element(point.rounds.begin(), point.rounds.end());
  const double divisor = seconds_unit(*point.step_seconds).divisor;
  return fmt::format("{} [{:.4g}, {:.4g}]", text, *low / divisor, *high / divisor);
}

std::string signed_percent(double ratio) {
  return fmt::format("{:+.1f} %", 100 * (ratio - 1));
}

// Of the speed-up's table; nothing where it has no such point.
const SpeedUp* speed_up_of(const StudyData& study, const Cell& cell) {
  for (const SpeedUp& entry : study.speed_ups) {
    for (const PointData* seed : cell.seeds) {
      if (entry.id == seed->id) {
        return &entry;
      }
    }
  }
  return nullptr;
}

// reached: whether the twin's final loss is reached at all; then a value that is missing was not measured.
std::string sooner(bool reached, const Maybe& value, const Maybe& low, const Maybe& high, const std::string& unit) {
  if (!value) {
    return reached ? "its " + unit + " are not known" : "it does not reach the twin's final loss in " + unit;
  }
  std::string text = fmt::format("{:.2f} times the speed in {}", *value, unit);
  text += fmt::format(" [{}, {}]", low ? fmt::format("{:.2f}", *low) : "open",
                      high ? fmt::format("{:.2f}", *high) : "open");
  const bool faster = low && *low > 1, slower = high && *high < 1;
  return text + (faster ? ", sooner" : slower ? ", later" : ", no difference shown");
}

// A sentence a size: the cell of the lowest loss beside its twin.
std::string verdict(const StudyData& study, const Groups& groups, const std::string& size) {
  const Cell* best = nullptr;
  for (const Cell* cell : groups.of_size(size)) {
    const bool lower = cell->experts > 1 && cell->mean(&PointData::loss) &&
                       (best == nullptr || *cell->mean(&PointData::loss) < *best->mean(&PointData::loss));
    best = lower ? cell : best;
  }
  const Cell* twin = best == nullptr ? nullptr : groups.twin_of(*best);
  if (twin == nullptr || !twin->mean(&PointData::loss)) {
    return size + ": no routed point and its dense twin are both done.";
  }
  const Interval own = *groups.interval(*best), other = *groups.interval(*twin);
  const std::string numbers =
      fmt::format("{:.4f} against {:.4f} dense ({})", own.mean, other.mean, signed_percent(own.mean / other.mean));
  std::string text = own.mean < other.mean
                         ? fmt::format("{}: at equal steps {} have the lowest loss of the experts tried, {}", size,
                                       experts_name(best->experts), numbers)
                         : fmt::format("{}: at equal steps no number of experts tried beats dense; {} come nearest, {}",
                                       size, experts_name(best->experts), numbers);
  if (const auto ratio = groups.loss_ratio(*best, *twin); ratio && ratio->low) {
    text += fmt::format("; the difference is {} [{}, {}]{}", signed_percent(ratio->value), signed_percent(*ratio->low),
                        signed_percent(*ratio->high),
                        ratio->paired ? fmt::format(", seed by seed ({} degrees of freedom)", groups.of_pairs.degrees)
                                      : ", by the spread of seeds");
    text += *ratio->low <= 1 && *ratio->high >= 1 ? ": none is shown" : "";
  }
  const std::optional<TimeRatio> step = step_ratio(*best, *twin);
  text += step ? fmt::format(". A step takes {:.2f} times as long", step->value) : ". The time of a step is missing";
  text += step && step->low ? fmt::format(" ({:.2f} to {:.2f} in the rounds of timing)", *step->low, *step->high) : "";
  if (const SpeedUp* entry = speed_up_of(study, *best)) {
    text += ". To the twin's final loss: " +
            sooner(entry->steps.has_value(), entry->seconds, entry->seconds_low, entry->seconds_high, "seconds") +
            "; " + sooner(entry->steps.has_value(), entry->steps, entry->steps_low, entry->steps_high, "steps");
  }
  return text + ".";
}

std::string pairs_text(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string text;
  for (const auto& [key, value] : pairs) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, value);
  }
  return text;
}

template <class T, class F>
std::string values_text(const StudyData& study, const F& value_of) {
  std::set<T> values;
  for (const PointData& point : study.points) {
    values.insert(value_of(point));
  }
  return fmt::format("{}", fmt::join(values, ", "));
}

// The base's settings are those of a dense model: each point has experts of its own, which the sentences are about.
FlatSettings with_experts_of(const StudyData& study, FlatSettings settings) {
  std::set<std::int64_t> experts, top_k;
  std::set<double> factors;
  for (const PointData& point : study.points) {
    if (point.experts > 1) {
      experts.insert(point.experts * point.granularity);
      top_k.insert(point.top_k * point.granularity);
      factors.insert(point.capacity_factor);
    }
  }
  if (experts.empty() || settings.empty()) {
    return settings;
  }
  const auto set = [&](const std::string& key, const std::string& value) {
    std::erase_if(settings, [&](const auto& entry) { return entry.first == key; });
    settings.emplace_back(key, value);
  };
  set("moe.experts", fmt::format("{}", fmt::join(experts, ", ")));
  set("moe.top_k", fmt::format("{}", fmt::join(top_k, ", ")));
  set("moe.capacity_factor", fmt::format("{}", fmt::join(factors, ", ")));
  set("moe.d_expert", setting(settings, "model.d_ff") + " / (top-k x granularity)");
  return settings;
}

}  // namespace

std::string command_of(const PointData& point) {
  std::string text = point.ranks == 1 ? "orthant train base.toml" : "orthant launch base.toml";
  for (const std::string& entry : point.set) {
    text += " --set " + shell_word(entry);
  }
  return text;
}

std::string command_of(const StudyData& study) {
  return study.command;
}

void add_summary(const StudyData& study, const Groups& groups, Section& section) {
  std::string tiles = "<dl class=\"tiles\">";
  const auto tile = [&tiles](const std::string& name, const std::string& value) {
    tiles += "<div><dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd></div>";
  };
  tile("points done", fmt::format("{} of {}", count_of(study, "done"), study.points.size()));
  if (const std::size_t failed = count_of(study, "failed"); failed > 0) {
    tile("failed", std::to_string(failed));
  }
  tile("wall time", with_unit(study.seconds, seconds_unit));
  tile("sizes", std::to_string(groups.sizes.size()));
  tile("experts",
       groups.experts.empty() ? "none" : fmt::format("{} to {}", groups.experts.front(), groups.experts.back()));
  section.html(tiles + "</dl>\n");
  std::vector<std::string> verdicts;
  for (const std::string& size : groups.sizes) {
    verdicts.push_back(verdict(study, groups, size));
  }
  section.list(verdicts);
  if (!groups.grid_text.empty()) {
    section.paragraph("The main grid is " + groups.grid_text +
                          "; figures show it unless they say otherwise. Loss against seconds comes first.",
                      "note");
  }
}

void add_points(const StudyData& study, Section& section) {
  Grid grid{{"point", "status", "parameters", "active", "tokens", "validation loss", "step", "forward and backward",
             "memory", "drops", "bytes sent a token"},
            {}};
  Grid raw{{"id",
            "status",
            "error",
            "size",
            "experts",
            "top_k",
            "capacity_factor",
            "granularity",
            "layout",
            "ranks",
            "seed",
            "parameters",
            "active_parameters",
            "model_flops_per_token",
            "router_flops_per_token",
            "dispatch_bytes_per_token",
            "tokens",
            "steps",
            "validation_loss",
            "step_seconds",
            "forward_backward_seconds",
            "train_seconds",
            "peak_bytes",
            "drop_rate",
            "command"},
           {}};
  std::vector<std::string> commands, failed;
  for (const PointData& p : study.points) {
    std::vector<std::string> row = {p.id,
                                    p.status,
                                    p.error,
                                    p.size,
                                    std::to_string(p.experts),
                                    std::to_string(p.top_k),
                                    exact_text(p.capacity_factor),
                                    std::to_string(p.granularity),
                                    p.layout,
                                    std::to_string(p.ranks),
                                    exact_text(p.seed)};
    for (const Maybe& value :
         {p.total, p.active, p.model_flops, p.router_flops, p.ranks > 1 ? p.dispatch_bytes : Maybe(0), p.tokens,
          p.steps, p.loss, p.step_seconds, p.forward_backward_seconds, p.train_seconds, p.peak_bytes, p.drop_rate}) {
      row.push_back(value ? exact_text(*value) : "");
    }
    row.push_back(command_of(p));
    raw.rows.push_back(row);
    grid.rows.push_back({p.id, p.status.empty() ? "missing" : p.status, text_or_missing(p.total),
                         text_or_missing(p.active), text_or_missing(p.tokens),
                         p.loss ? fmt::format("{:.4f}", *p.loss) : "missing", step_text(p),
                         with_unit(p.forward_backward_seconds, seconds_unit), with_unit(p.peak_bytes, bytes_unit),
                         p.drop_rate ? fmt::format("{:.2f} %", 100 * *p.drop_rate) : "missing",
                         p.ranks > 1 ? text_or_missing(p.dispatch_bytes) : "0"});
    commands.push_back(command_of(p));
    if (p.status == "failed") {
      failed.push_back(p.id + ": " + (p.error.empty() ? "no reason was kept" : p.error));
    }
  }
  if (!failed.empty()) {
    section.heading("Points that failed");
    section.list(failed, "alarm");
  }
  if (!grid.rows.empty()) {
    section.html("<p>" + download_link("points.csv", "text/csv", csv(raw), "CSV") + "</p>\n");
    section.table_with_commands(grid, commands,
                                "Every point with the command that makes its numbers. base.toml is the study's base "
                                "configuration, to be saved from the section on methods. A step is the median of the "
                                "rounds of timing, with their least and greatest. Forward and backward are its share "
                                "by bench step --why.");
  }
}

void add_study_methods(const StudyData& study, const Groups& groups, Section& section) {
  std::string text = fmt::format(
      "The study is a grid of {} points: sizes {}; experts {} (1 is the dense twin); top-k {}; capacity factors {} (0: "
      "dropless); granularity {}; seeds {}; ranks {}.",
      study.points.size(), fmt::join(groups.sizes, ", "), fmt::join(groups.experts, ", "),
      values_text<std::int64_t>(study, [](const PointData& p) { return p.top_k; }),
      values_text<double>(study, [](const PointData& p) { return p.capacity_factor; }),
      values_text<std::int64_t>(study, [](const PointData& p) { return p.granularity; }),
      values_text<double>(study, [](const PointData& p) { return p.seed; }),
      values_text<std::int64_t>(study, [](const PointData& p) { return p.ranks; }));
  text += study.learning_rate_rule.empty() ? "" : " Learning rate: " + study.learning_rate_rule;
  section.paragraph(text);
  for (const std::string& warning : study.warnings) {
    section.paragraph("Warning: " + warning + ".", "note");
  }
  if (!study.config_toml.empty()) {
    FlatSettings settings;
    try {
      settings = flat_settings(study.config_toml, "config_toml of study.json");
    } catch (const Error& error) {
      section.paragraph(std::string("The base configuration cannot be read: ") + error.what(), "note");
    }
    const std::string base = methods_of(with_experts_of(study, settings), std::nullopt, std::nullopt, std::nullopt);
    if (!base.empty()) {
      section.paragraph("The base, of which each point changes what its command says. " + base);
    }
  }
  Grid facts{{"", ""}, {}};
  const auto fact = [&facts](const std::string& name, const std::string& value) {
    facts.rows.push_back({name, value.empty() ? "missing" : value});
  };
  fact("machine", pairs_text(study.machine));
  fact("text", pairs_text(study.text));
  fact("metric", study.metric);
  fact("version", study.version);
  fact("created", study.created);
  section.table(facts, "Where and when it was made");
  if (!study.command.empty()) {
    section.paragraph("The command of the study:");
    section.code(study.command);
  }
  std::string links;
  for (const auto& [name, content] :
       {std::pair("study.toml", &study.study_toml), std::pair("base.toml", &study.config_toml)}) {
    links +=
        content->empty() ? "" : download_link(name, "application/toml", *content, std::string("Save ") + name) + " ";
  }
  section.html(links.empty() ? "" : "<p>" + links + "</p>\n");
}

}  // namespace orthant::report
