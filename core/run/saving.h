// Between a rank's parameters and checkpoints: master weights and optimizer state, by global name and slice.
//
// In a checkpoint, NAME is the fp32 master weight, optimizer/moment1/NAME and optimizer/moment2/NAME its moments.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "core/checkpoint/checkpoint.h"
#include "core/parameters.h"

namespace orthant {

// Collective over `world`. Returns the folder (on rank 0; empty elsewhere) once the checkpoint is complete on disk.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, ParamStore& store,
                                      const std::map<std::string, std::string>& state, Group& world, Stream& stream);

// Fills weights and optimizer state of this rank from a checkpoint of any layout. Errors: Error naming what the
// checkpoint lacks, or whose shape differs.
void load_checkpoint(const CheckpointReader& reader, const Plan& plan, ParamStore& store, Stream& stream);

// Refuses a checkpoint that holds more than the model and optimizer of `settings`, such as further layers: loading it
// would silently leave them out. (What it lacks, load_checkpoint refuses.) Errors: Error naming one of them.
void require_same_parameters(const CheckpointReader& reader, const Settings& settings);

// Refuses a checkpoint that --resume names and that is not there, or is none, before anything starts. (The newest
// checkpoint of the run itself is looked for when it starts.) Errors: ConfigError.
void check_resume(const std::string& resume, const std::filesystem::path& root);

// The folder that --resume names: a checkpoint, or "auto", the newest complete one under `root` (empty when there
// is none), or "auto:PATH", PATH when there is none. Asked by rank 0, told to all: collective over `world`.
std::filesystem::path find_checkpoint(const std::string& resume, const std::filesystem::path& root, Group& world,
                                      Stream& stream);

}  // namespace orthant
