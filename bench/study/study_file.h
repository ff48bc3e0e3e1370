// A study as somebody wrote it: STUDY.toml, read strictly. docs/guides/study.md describes the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

// Settings with a name: a size of the model, or a layout of ranks.
struct NamedSettings {
  std::string name;
  std::vector<std::string> set;  // as --set takes them: "model.layers=4"
};

// The points of a grid are all combinations of what its lists hold.
struct StudyGrid {
  std::vector<std::string> sizes;
  std::vector<std::string> layouts;
  std::vector<std::int64_t> experts;           // 1: the dense twin
  std::vector<std::int64_t> experts_per_rank;  // instead: weak scaling
  std::vector<std::int64_t> top_k;
  std::vector<std::int64_t>
      granularity;  // an expert becomes so many of a smaller width, and a token chooses so many more
  std::vector<double> capacity_factor;  // 0: dropless
  std::vector<double> lr_factor;        // what the learning rate of a size is multiplied by
  std::vector<std::int64_t> seeds;
};

// The learning rate of a size: lr * (model.d_model / d_model)^exponent, whatever the experts.
struct LearningRateRule {
  double lr = 0;
  std::int64_t d_model = 0;
  double exponent = 0;
};

struct StudyFile {
  std::string path;  // as the caller named it
  std::string text;  // of the file
  std::string name, title;
  std::string config;     // of all points; absolute
  std::string directory;  // the study's folder is directory/name
  std::vector<std::string> set;
  std::int64_t side_by_side = 0;   // points that train at a time; 0: as many as a trial finds to be fastest
  std::int64_t timing_rounds = 3;  // 0: nothing is timed alone
  std::int64_t timing_steps = 10;
  std::int64_t most_points = 1000;     // more are refused
  std::int64_t resamples = 1000;       // of the bootstrap
  std::vector<double> counterfactual;  // capacity factors at which dropless points say what they would drop
  bool keep_checkpoints = false;
  std::optional<LearningRateRule> learning_rate;
  std::vector<NamedSettings> sizes, layouts;
  std::vector<StudyGrid> grids;
};

// Reads it. Errors: ConfigError with every problem at once, each with file:line:column.
StudyFile read_study(const std::string& path);

}  // namespace orthant
