#include "apps/report/run_data.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string_view>

#include "apps/report/markup.h"
#include "apps/report/read_json.h"
#include "apps/report/scale.h"
#include "apps/report/step_seconds.h"
#include "core/arch/links.h"
#include "core/base/text_file.h"
#include "core/config/config.h"
#include "core/config/toml_reader.h"

namespace orthant::report {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Node& node) {
  switch (node.kind) {
    case Node::Kind::boolean: return node.boolean ? "true" : "false";
    case Node::Kind::integer: return std::to_string(node.integer);
    case Node::Kind::number: return fmt::format("{}", node.number);
    case Node::Kind::array: {
      std::string text;
      for (const Node& item : node.items) {
        text += (text.empty() ? "" : ", ") + text_of(item);
      }
      return "[" + text + "]";
    }
    default: return node.text;
  }
}

void flatten(const Node& table, const std::string& prefix, FlatSettings& settings) {
  for (const Member& member : table.members) {
    const std::string key = prefix + member.key;
    if (member.value.kind == Node::Kind::table) {
      flatten(member.value, key + ".", settings);
    } else {
      settings.emplace_back(key, text_of(member.value));
    }
  }
}

std::optional<std::string> text_in(const fs::path& file) {
  try {
    return read_text_file(file);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

// What the configuration says of the model. No library is opened: a run folder may be anybody's.
void add_costs(const fs::path& config_file, RunData& run) {
  try {
    const Config config = load_config(config_file.string(), {"data.source=\"synthetic\""},
                                      [](const PluginRequest&) { return std::nullopt; });
    const Settings& s = config.settings;
    double total = 0, active = 0;
    const double chosen =
        static_cast<double>(s.moe.top_k) / static_cast<double>(std::max<std::int64_t>(s.moe.experts, 1));
    for (const LayerSpecs& layer : parameter_table(s)) {
      for (const ParamSpec& p : layer.params) {
        const auto count = static_cast<double>(p.global.elements());
        total += count;
        active += p.expert ? chosen * count : count;
      }
    }
    run.parameters = total;
    run.active_parameters = active;
    run.flops_per_token = training_flops(links_of(s));
  } catch (const Error&) {
    run.notes.push_back(run.name +
                        ": its configuration needs what this program does not have (a plugin's kind, perhaps), so "
                        "parameters and FLOPs are missing.");
  }
}

}  // namespace

FlatSettings flat_settings(const std::string& toml, const std::string& where) {
  auto sources = std::make_shared<Sources>();
  const int file = sources->add(where, toml);
  Diagnostics diagnostics(sources);
  const std::optional<Node> root = read_toml(*sources, file, toml, diagnostics);
  diagnostics.throw_if_any();
  FlatSettings settings;
  flatten(root.value(), "", settings);
  return settings;
}

std::string setting(const FlatSettings& settings, const std::string& key) {
  const auto it = std::find_if(settings.begin(), settings.end(), [&](const auto& entry) { return entry.first == key; });
  return it == settings.end() ? "" : it->second;
}

std::vector<RunLine> read_metrics(const fs::path& file, std::vector<std::string>& notes) {
  const std::optional<std::string> text = text_in(file);
  if (!text) {
    throw ConfigError(
        fmt::format("'{}' is missing: a run's folder has it once its first step is logged", file.string()));
  }
  std::vector<RunLine> lines;
  std::string_view rest = *text;
  for (std::size_t count = 1; !rest.empty(); ++count) {
    const std::size_t end = rest.find('\n');
    const std::string line(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string where = fmt::format("{}:{}", file.string(), count);
    if (end == std::string_view::npos && !Json::accept(line)) {
      notes.push_back(where + " is cut short and was passed over.");
      break;
    }
    RunLine read{json_of(line, where), where, 0, 0};
    const std::optional<double> step = number_at(read.json, "step", where);
    const bool whole = step && *step >= 0 && *step < 9e15 && read.json["step"].is_number_integer();
    if (!whole) {
      throw ConfigError(where + ": 'step' must be a whole number");
    }
    read.step = static_cast<std::int64_t>(*step);
    if (!lines.empty() && read.step < lines.back().step) {
      throw ConfigError(fmt::format("{}: step {} comes after step {}", where, read.step, lines.back().step));
    }
    const double took = number_at(read.json, "step_seconds", where).value_or(0);
    const std::int64_t steps = read.step - (lines.empty() ? 0 : lines.back().step);
    read.seconds = (lines.empty() ? 0 : lines.back().seconds) + took * static_cast<double>(steps);
    lines.push_back(std::move(read));
  }
  return lines;
}

std::vector<StepSeconds> step_seconds_in(const fs::path& run) {
  std::vector<StepSeconds> all;
  if (!fs::exists(run / "metrics.jsonl")) {
    return all;
  }
  std::vector<std::string> notes;  // of a line that is cut short
  for (const RunLine& line : read_metrics(run / "metrics.jsonl", notes)) {
    if (const std::optional<double> took = number_at(line.json, "step_seconds", line.where)) {
      all.push_back({line.step, *took});
    }
  }
  return all;
}

namespace {

// Of steps that are in no line of the run any more: a stop took them back, and they were trained again.
double repeated_seconds(const fs::path& file, const std::vector<RunLine>& lines) {
  double seconds = 0;
  std::int64_t before = 0;
  std::istringstream in(text_in(file).value_or(""));
  for (std::string text; std::getline(in, text);) {
    const Json line = Json::parse(text, nullptr, false);
    const bool good = line.is_object() && line.contains("step") && line["step"].is_number_integer() &&
                      line.contains("step_seconds") && line["step_seconds"].is_number();
    if (!good) {
      continue;  // cut short
    }
    const std::int64_t step = line["step"];
    if (before == 0 || before >= step) {  // the first after a stop: it stands for the steps since the last that counts
      const auto next = std::lower_bound(lines.begin(), lines.end(), step,
                                         [](const RunLine& one, std::int64_t wanted) { return one.step < wanted; });
      before = next == lines.begin() ? 0 : std::prev(next)->step;
    }
    seconds += std::max(0.0, line["step_seconds"].get<double>()) * static_cast<double>(step - before);
    before = step;
  }
  return seconds;
}

}  // namespace

RunData read_run(const fs::path& folder) {
  RunData run;
  run.folder = folder;
  const fs::path whole = fs::absolute(folder / "").lexically_normal().parent_path();
  run.name = whole.filename().string();
  if (!fs::is_directory(folder)) {
    const fs::path usual = fs::path("runs") / folder;
    throw ConfigError(fmt::format(
        "'{}' {}: give a run's folder{}", folder.string(), fs::exists(folder) ? "is not a folder" : "does not exist",
        folder.is_relative() && fs::is_directory(usual) ? ", here '" + usual.string() + "'" : ""));
  }
  run.lines = read_metrics(folder / "metrics.jsonl", run.notes);
  if (run.lines.empty()) {
    run.notes.push_back(run.name + ": metrics.jsonl has no line yet.");
  }
  const double again = repeated_seconds(folder / "metrics.superseded.jsonl", run.lines);
  if (again > 0 && std::isfinite(again)) {
    const Unit unit = seconds_unit(again);
    run.notes.push_back(
        fmt::format("{}: steps that took {:.4g} {} were trained again after a stop (metrics.superseded.jsonl); the "
                    "training time has them once.",
                    run.name, again / unit.divisor, unit.name));
  }
  const fs::path config_file = folder / "config.resolved.toml";
  if (const std::optional<std::string> text = text_in(config_file)) {
    run.settings = flat_settings(*text, config_file.string());
    run.unit = loss_unit({.source = setting(run.settings, "data.source"),
                          .tokenizer = setting(run.settings, "data.tokenizer"),
                          .objective = setting(run.settings, "train.objective")},
                         folder);
    add_costs(config_file, run);
  } else {
    run.notes.push_back(run.name + ": config.resolved.toml is missing, so its settings are not shown.");
  }
  if (fs::exists(folder / "trace" / "summary.json")) {
    run.trace = read_json_file(folder / "trace" / "summary.json");
  }
  return run;
}

std::optional<double> RunData::number(const RunLine& line, const char* key) const {
  return number_at(line.json, key, line.where);
}

std::optional<double> RunData::last(const char* key) const {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (const std::optional<double> value = number(*line, key)) {
      return value;
    }
  }
  return std::nullopt;
}

std::string RunData::command() const {
  return "orthant launch " + shell_word((folder / "config.resolved.toml").lexically_normal().string());
}

}  // namespace orthant::report
