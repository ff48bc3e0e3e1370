// Which model a folder that somebody names holds: a run's, a checkpoint's in one, or a published one's.
#pragma once

#include <filesystem>
#include <string>

namespace orthant {

// Whether this folder is a complete checkpoint.
bool is_checkpoint(const std::filesystem::path& folder);

// The folder of the run whose checkpoint this is: RUN of RUN/checkpoints/STEP, which may end in a slash.
std::filesystem::path run_of(const std::filesystem::path& checkpoint);

// The folder of the run that is named, itself or by a checkpoint in it.
std::filesystem::path named_run(const std::filesystem::path& run_or_checkpoint);

// Whether it is a published model's (config.json), and no run's.
bool is_published(const std::filesystem::path& folder);

// What to say to somebody who gives a published model's folder where a run's is expected; empty for another folder.
std::string hint_of_published(const std::filesystem::path& folder);

}  // namespace orthant
