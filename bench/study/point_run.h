// A point of a study as a training run: how it is started, and what it left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/study/grid.h"

namespace orthant {

// The folder of a study, and the program that trains its points.
struct StudyFolder {
  std::filesystem::path root;
  std::filesystem::path program;  // absolute

  std::filesystem::path config() const { return root / "config.toml"; }
  std::filesystem::path points() const { return root / "points"; }
  std::filesystem::path timing() const { return root / "timing"; }
  std::filesystem::path timings() const { return root / "timings.json"; }
  std::filesystem::path clock() const { return root / "clock.json"; }
  std::filesystem::path run_of(const GridPoint& point) const { return points() / point.id; }
  std::filesystem::path log_of(const GridPoint& point) const { return points() / (point.id + ".log"); }
};

// The command that trains the point, with so many threads for each rank, or goes on with it.
std::vector<std::string> train_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads);
// The command that runs `steps` steps of it for their time, as run `name` of the folder for timing.
std::vector<std::string> timing_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads,
                                        std::int64_t steps, const std::string& name);
// The command that says why a step of it takes as long as it does (orthant bench step --why --json).
std::vector<std::string> why_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads,
                                     std::int64_t steps);

// Of metrics.jsonl: the lines that are whole.
std::vector<nlohmann::json> lines_of_run(const std::filesystem::path& run);
// How far a run is, 0 to 1; 0 where there is nothing to read yet.
double progress_of(const std::filesystem::path& run, std::int64_t steps);
// The validation losses that a study compares, nats of a token: logarithms of them are fitted.
inline constexpr double largest_loss = 1e6;
bool is_loss(const nlohmann::ordered_json& value);

// A point's result from its run: validation_loss, curve, train_seconds, peak_bytes, drop_rate (docs/guides/study.md).
// seconds: that it took in all; nothing where that is not known.
// Errors: Error where the run has not come to its last step, was never validated, or has a loss that is_loss refuses.
nlohmann::ordered_json result_of(const StudyFolder& folder, const GridPoint& point, std::optional<double> seconds);
// What several runs of why_command printed, as members of a point's result: forward_backward_seconds, floor_seconds,
// parts (name -> seconds of a step, none below 0) and causes (the same undivided, with the keys that change them).
// Medians over the runs. Errors: Error where one printed no such JSON.
nlohmann::ordered_json costs_of(const std::vector<std::string>& printed);
// The seconds of each step after the first `skipped` ones.
std::vector<double> step_seconds_of(const std::filesystem::path& run, std::int64_t skipped);
double median(std::vector<double> values);  // 0 of none

// The last lines of a log, for the card.
std::string end_of_log(const std::filesystem::path& log);

}  // namespace orthant
