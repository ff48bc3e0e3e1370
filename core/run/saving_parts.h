// What checkpoints that are waited for (saving.h) and those beside the training (saving_beside.h) have in common.
#pragma once

#include <orthant/param.h>
#include <orthant/step_context.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/layers/parameter_state.h"
#include "core/layers/parameter_store.h"
#include "core/run/saving.h"
#include "core/run/written_runs.h"

namespace orthant {

// "optimizer/moment1/NAME"; what a plugin remembers keeps its name.
std::string name_in_checkpoint(const std::string& state, const std::string& parameter);

// Where a piece of a parameter stands in a checkpoint, under the names of the first worker.
SliceMeta slice_of(const StatePiece& part, const Param& p);

// All that this rank writes. The bytes are asked for when `writer` wants them, on this thread, with `at.stream`.
void add_saved(CheckpointWriter& writer, const std::vector<WrittenRun>& runs, const Plan& plan, ParamStore& store,
               const HookContext& at);

// The manifest's state with what says by which layout it was written.
std::map<std::string, std::string> with_layout(std::map<std::string, std::string> state, const Plan& plan);

// Why no checkpoint may appear any more, such as that another job has taken the folder: what fails there fails by that.
// Empty: it may.
std::string refusal_of(const std::function<void()>& before_commit, const SavingRanks& ranks);

// Ends a save that has failed on this rank: tells the others, then removes what it can. Throws Error with the reason.
[[noreturn]] void fail_save(const std::string& failure, CheckpointWriter& writer,
                            const std::function<void()>& before_commit, const SavingRanks& ranks);

}  // namespace orthant
