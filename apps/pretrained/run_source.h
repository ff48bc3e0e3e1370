// Where the weights of a run lie, and the configuration that tells the shape of its model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"

namespace orthant {

// The folder that somebody names, absolute and without a slash at its end. Errors: ConfigError where it is none, with
// the run of that name in runs/ if there is one.
std::filesystem::path named_folder(const std::filesystem::path& given);

struct RunSource {
  std::filesystem::path checkpoint, config;
  std::vector<std::string> passed_over;  // newer checkpoints that cannot be used, each with the reason
};

// given: a run's folder, whose newest undamaged checkpoint is taken, or a checkpoint's in it. what: the verb of the
// command, for messages. Errors: ConfigError for what is not there or is incomplete, Error for what cannot be read now.
RunSource find_run_source(const std::filesystem::path& given, const char* what);

// A reader of the averages in the place of the weights; what is frozen has none, and its weights are read. averages
// false: of the weights. Errors: ConfigError for a checkpoint without averages; those of CheckpointReader.
CheckpointReader weights_reader(const std::filesystem::path& checkpoint, bool averages);

}  // namespace orthant
