// average_checkpoints: the mean of the weights of several checkpoints of one model, as a run after step 0.
//
// The mean over the last checkpoints of a run whose learning rate stays is about as good as a decay to zero, and costs
// no training; that over several fine-tuned runs of one model is often better than each of them. An average that is
// updated in each step is another matter. Sources: Izmailov et al., "Averaging weights leads to wider optima and better
// generalization", 2018; Kaddour, "Stop wasting my time! Saving days of ImageNet and BERT training with latest weight
// averaging", 2022; Wortsman et al., "Model soups", 2022.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/config/config.h"

namespace orthant {

struct AverageOptions {
  std::vector<std::filesystem::path> sources;  // one run's folder, or folders of two checkpoints or more, of any runs
  std::int64_t last = 0;                       // of a run: its newest so many; 0: all that it has
  std::filesystem::path output;                // the folder of the new run
};

struct AverageResult {
  std::vector<std::filesystem::path> checkpoints;  // in the order in which they were summed
  std::int64_t parameters = 0;
};

// Each element is the sum in fp64 over the checkpoints, divided by their number and rounded once. Adapters ([lora]) are
// added to their matrices first. The states of gates (an expert's bias) are averaged as weights are.
// Errors: ConfigError for fewer than two checkpoints, fewer than `last`, one that is given twice, models that differ;
// those of find_run_source and NewRun; Error for a damaged checkpoint.
AverageResult average_checkpoints(const AverageOptions& options, const PluginKeys& plugin_keys,
                                  const PluginKinds& plugin_kinds = {});

}  // namespace orthant
