// A study's card and fits, read for a report. Their format is bench/study's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace orthant::report {

// A number that may be missing: null or absent in the file.
using Maybe = std::optional<double>;

struct CurvePoint {
  double step = 0, tokens = 0, loss = 0;
};

struct PointData {
  std::string id, size, layout, status, error;
  std::int64_t experts = 1;  // 1: the dense twin
  std::int64_t top_k = 1, granularity = 1, ranks = 1;
  double seed = 1;
  double capacity_factor = 0;
  double lr_factor = 1;
  std::vector<std::string> set;
  Maybe total, active;              // parameters
  Maybe model_flops, router_flops;  // of a token, forward and backward
  Maybe dispatch_bytes;             // of a token
  Maybe tokens, steps;              // planned
  // Results, of a point that is done.
  Maybe loss, train_seconds, step_seconds, forward_backward_seconds, peak_bytes, drop_rate;
  Maybe floor_seconds;                                    // what a step could take at least
  std::vector<std::pair<std::string, double>> parts;      // seconds of a step by part; they add up to step_seconds
  std::vector<double> rounds;                             // step_seconds of each round, whose median it is
  std::vector<CurvePoint> curve;                          // validation losses
  std::vector<std::pair<double, double>> counterfactual;  // capacity factor, drop rate

  bool done() const { return status == "done"; }
  // Of the steps that the point is for, each as long as one timed alone.
  Maybe seconds() const { return steps && step_seconds ? Maybe(*steps * *step_seconds) : std::nullopt; }
  // Of all its tokens, with the router's.
  Maybe flops() const {
    return tokens && model_flops ? Maybe(*tokens * (*model_flops + router_flops.value_or(0))) : std::nullopt;
  }
};

struct Coefficient {
  std::string name;
  Maybe value, low, high;  // a side that is missing is open
};

struct LawData {
  std::string name, formula;
  std::vector<Coefficient> coefficients;
  Maybe residual_rms, points;
  std::vector<std::pair<std::string, Maybe>> leave_one_size_out;
  std::vector<std::pair<std::string, double>> predicted;  // id, loss
  // Of each size by name, experts and loss close together; empty in the fits of older versions.
  std::map<std::string, std::vector<std::pair<double, double>>> curves = {};
};

struct SpeedUp {
  std::string id, twin;
  Maybe steps, steps_low, steps_high, seconds, seconds_low, seconds_high;
};

struct EffectiveParameters {
  std::string id;
  Maybe value, low, high;
};

struct StudyData {
  std::filesystem::path folder;
  std::string name, title, command, version, created, study_toml, config_toml, learning_rate_rule, metric;
  std::vector<std::string> warnings;    // of the points' configurations, each once
  std::string unit = "nats per token";  // of its losses
  Maybe seconds;
  std::vector<std::pair<std::string, std::string>> machine, text;  // as they were written: key and value
  std::vector<PointData> points;
  bool has_fits = false;
  std::vector<LawData> laws;
  std::vector<SpeedUp> speed_ups;
  std::vector<EffectiveParameters> effective;
  std::vector<std::pair<std::string, std::string>> skipped;  // a fit that could not be made, and why

  const PointData* find(const std::string& id) const;
};

// Errors: ConfigError naming the file, the point and the key.
StudyData read_study(const std::filesystem::path& folder);

}  // namespace orthant::report
