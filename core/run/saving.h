// Between a rank's parameters and checkpoints: weights and optimizer state, by global name and slice.
//
// In a checkpoint, NAME is the fp32 master weight of a parameter, optimizer/STATE/NAME what the optimizer keeps beside
// it (orthant/optimizer.h): optimizer/moment1/NAME and optimizer/moment2/NAME for adamw. What a run stores in fewer
// bits (core/layers/state_storage.h) is f32 there too, and loads into a run with any storage. What plugins remember is
// said in plugin_state.h. Where workers are independent (AxisSpec), plain names are the first worker's, and workerN/
// stands before those of the others.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/layers/parameter_store.h"

namespace orthant {

// The ranks that save together: all of the communicator. One that is busy with files for longer than
// `disk_timeout_seconds` counts as stuck.
struct SavingRanks {
  Communicator& communicator;
  Group& world;
  double disk_timeout_seconds = 1800;
};

// What stands before a parameter's name where a checkpoint has the average of its values (orthant/weight_average.h).
inline constexpr const char* averages_prefix = "optimizer/ema/";
bool has_averages(const CheckpointReader& reader);

// Whether a tensor of a checkpoint is a parameter of the first worker, not what else is kept with it.
bool is_parameter_name(const std::string& name);

// Training waits for it; saving_beside.h has the other kind. Collective over the world. Returns the folder (on rank 0;
// empty elsewhere) once the checkpoint is complete on disk. before_commit: called on rank 0 when all is written, right
// before the checkpoint appears; by throwing it keeps that from happening. Called too on each rank whose part of the
// save fails: what it throws is told as well. Errors: Error, the same on all ranks, of the rank that failed first; what
// it left is removed where that is possible.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, const Plan& plan,
                                      ParamStore& store, const std::map<std::string, std::string>& state,
                                      const SavingRanks& ranks, Stream& stream,
                                      const std::function<void()>& before_commit = {});

// Fills weights, optimizer state and what plugins remember from a checkpoint of any layout; a worker that the
// checkpoint does not have begins as its first one. Averages of the weights (optimizer.ema_decay) that it does not have
// begin as its weights. Returns a line for that, for averages that nobody here wants, and for each state of a plugin
// that could not be taken as it was. Errors: Error naming what the checkpoint lacks, or whose shape differs.
std::vector<std::string> load_checkpoint(const CheckpointReader& reader, const Plan& plan, ParamStore& store,
                                         Stream& stream);

// Fills weights and the states of gates alone: what a new run begins with, its averages too. Errors: as
// load_checkpoint's.
void load_weights(const CheckpointReader& reader, const Plan& plan, ParamStore& store, Stream& stream);

// Refuses a checkpoint that holds more than the model and optimizer of `settings`, such as further layers: loading it
// would silently leave them out. (What it lacks, load_checkpoint refuses.) Errors: Error naming one of them.
void require_same_parameters(const CheckpointReader& reader, const Settings& settings);

}  // namespace orthant
