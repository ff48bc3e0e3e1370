// What a checkpoint says of the run that goes on from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/config/config.h"

namespace orthant {

// A number in the checkpoint's state. Errors: Error where it is not there, or none.
std::int64_t number_in(const CheckpointReader& reader, const std::string& key);

// Errors: Error for a checkpoint of another model.kind, whose parameters may have the same names.
void require_same_kind(const CheckpointReader& reader, const Settings& settings);
// Warns of settings other than the checkpoint's. Before it is loaded: they say why it may not fit.
void warn_of_changed_settings(const CheckpointReader& reader, const Config& config);
// How this run trains the routers where the run that its weights come from did it otherwise, a line for each setting: a
// published model's import has what was published (docs/guides/import.md).
std::vector<std::string> other_router_training(const CheckpointReader& reader, const Config& config);
// Tells the user which checkpoint the run goes on from.
void say_resumed(const std::filesystem::path& from, const CheckpointReader& reader);

// Syncs a run's folder for the names in it, for its own, and for that of the folder of runs, which the launcher may
// have made.
void sync_run_folder(std::filesystem::path folder);

}  // namespace orthant
