// What a run left, read for a report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/report/loss_unit.h"
#include "core/base/json.h"

namespace orthant::report {

// A configuration as it was written down: "moe.experts" to "8", in the order of the file. Lists are in brackets.
using FlatSettings = std::vector<std::pair<std::string, std::string>>;

// Errors: ConfigError naming `where` for what is no TOML.
FlatSettings flat_settings(const std::string& toml, const std::string& where);
// "" where the key is not there.
std::string setting(const FlatSettings& settings, const std::string& key);

struct RunLine {
  Json json;          // an object; `step` is a whole number
  std::string where;  // "metrics.jsonl:12"
  std::int64_t step = 0;
  double seconds = 0;  // of training since the run began: see read_run
};

struct RunData {
  std::filesystem::path folder;
  std::string name;  // unique among those of a page
  std::string id;    // the same for ids of figures: letters, digits, '-'
  std::vector<RunLine> lines;
  std::vector<std::string> notes;  // what was passed over or is missing, in sentences
  FlatSettings settings;           // empty where config.resolved.toml is missing
  LossUnit unit;                   // of its losses
  std::optional<double> flops_per_token, parameters, active_parameters;
  Json trace;  // trace/summary.json; null where it is not there

  // Numbers of a line; nothing where the line has none. Errors: ConfigError for another type.
  std::optional<double> number(const RunLine& line, const char* key) const;
  // The last line that has one.
  std::optional<double> last(const char* key) const;
  // What trains it again.
  std::string command() const;
};

// Only every `run.log_every`-th step is logged, so the seconds are an estimate: each logged step's time stands for the
// steps since the line before. A last line that a kill cut short is passed over. What a stop took back counts once; a
// note says how long it took.
// Errors: ConfigError naming file, line and reason.
RunData read_run(const std::filesystem::path& folder);

// The same for a point of a study, from its metrics alone: lines in order. Errors: as above.
std::vector<RunLine> read_metrics(const std::filesystem::path& file, std::vector<std::string>& notes);

}  // namespace orthant::report
