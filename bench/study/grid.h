// The points of a study: each a run of its own, at the operations per token of its dense twin.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/study/study_file.h"

namespace orthant {

struct GridPoint {
  std::string id;  // "small_e8_k1_g1_one_s1": no two points of a study share it
  std::string size, layout;
  std::int64_t experts = 1;  // of full width; 1: the dense twin
  std::int64_t top_k = 1;
  std::int64_t granularity = 1;
  double capacity_factor = 0;
  double lr_factor = 1;
  std::int64_t seed = 1;
  int ranks = 1;
  std::vector<std::string> set;  // all that tells the point from the study's configuration
  std::int64_t total_parameters = 0;
  std::int64_t active_parameters = 0;  // that a token meets
  double model_flops = 0;              // of a token, forward and backward, without the router's
  double router_flops = 0;             // the same, of the router's logits
  std::int64_t dispatch_bytes = 0;     // of a token's rows to experts and back, forward and backward
  std::int64_t steps = 0;
  std::int64_t tokens = 0;            // in all steps
  std::vector<std::string> warnings;  // of its configuration, as core/config/validate.h says them

  // All but the seed and the learning rate: points that differ in nothing else cost the same.
  std::string shape() const;
  // Of the whole run, forward and backward.
  double flops() const { return (model_flops + router_flops) * static_cast<double>(tokens); }
};

// The learning rate of a size by the study's rule.
double learning_rate(const LearningRateRule& rule, std::int64_t d_model);
// The rule as a sentence.
std::string rule_text(const StudyFile& study);

// All points, those of the first grid first, each once. Every one's configuration has been loaded and checked, and its
// operations per token are those of its size's dense twin (the router's apart). `overrides`: of every point, last.
// Errors: ConfigError with the reasons of the first few points that cannot run, for more points than most_points, and
// for settings of the study, of a size, of a layout or of `overrides` that the study sets of every point itself.
std::vector<GridPoint> make_points(const StudyFile& study, const std::vector<std::string>& overrides);

}  // namespace orthant
