// Where the weights of a run lie, and the configuration that tells the shape of its model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace orthant
