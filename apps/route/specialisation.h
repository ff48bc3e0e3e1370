// What the experts of a trained model are chosen for, and since when: shares of tokens, of validation sets, and the
// saturation of routers (Muennighoff et al., "OLMoE", 2024, section 5).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

struct ChosenToken {
  std::int32_t id = 0;
  std::int64_t count = 0;  // of its occurrences that chose the expert
  double share = 0;        // of all its occurrences: vocabulary specialisation
};

struct ExpertUse {
  std::int64_t choices = 0;
  std::vector<ChosenToken> frequent;     // greatest count first
  std::vector<ChosenToken> specialised;  // greatest share first, of tokens that occur often enough
  std::vector<double> of_sets;           // of each set, the share of its tokens that chose it: domain specialisation
};

struct LayerUse {
  int block = 0;
  std::vector<ExpertUse> experts;
};

// At an earlier checkpoint: the mean share of a token's experts that are those of the newest, for each routed layer.
struct Saturation {
  std::int64_t step = 0;
  std::vector<double> layers;
};

struct Specialisation {
  std::int64_t step = 0;  // of the newest checkpoint
  double chosen = 0;      // experts that a token chose, on average
  std::vector<std::string> sets;
  std::vector<std::int64_t> tokens;  // of each set
  std::vector<LayerUse> layers;
  std::vector<Saturation> saturation;  // ascending steps
  std::vector<std::string> texts;      // of the ids that are listed, by id; "" for others
};

struct SpecialisationOptions {
  std::filesystem::path run;
  std::size_t listed = 10;  // tokens of an expert
  int threads = 1;          // of the CPU
};

// Routes what the run holds out and its validation sets through the weights of its checkpoints, on one rank of this
// process. Errors: ConfigError for a run without routed layers, checkpoints or held-out tokens; those of OpenedModel
// and make_batch_source.
Specialisation specialisation_of(const SpecialisationOptions& options, const PluginKeys& plugin_keys,
                                 const PluginKinds& plugin_kinds);

// What `orthant route RUN --experts` leaves in RUN/routing/experts.json for the report.
std::filesystem::path specialisation_file(const std::filesystem::path& run);
std::string to_json(const Specialisation& found);

}  // namespace orthant
