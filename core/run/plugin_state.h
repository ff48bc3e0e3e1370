// What keepers remember (Keeper::state), to and from checkpoints.
//
// In a checkpoint, plugins/PLUGIN/STATE/NAME is the state for parameter NAME: of its shape where ranks own it; with one
// more dimension in front, over the ranks of the sum, where they add up. What is of a rank alone is
// plugins/PLUGIN/STATE/rank R/GROUP, of the shape that the plugin gave it.
#pragma once

#include <set>
#include <string>

#include "core/checkpoint/checkpoint.h"
#include "core/layers/parameter_store.h"

namespace orthant {

// Before the name of everything that is a worker's own (AxisSpec::independent): "" for the first, else "worker1/".
std::string worker_prefix(int worker);
// The name under which a worker finds `name`: its own, else the first worker's.
std::string name_for_worker(const CheckpointReader& reader, int worker, const std::string& name);

// The axes and the cut of the model, by which a rank knows its own part again: "data 2, pipeline 2; layers 0 3 6".
std::string layout_text(const Plan& plan);

// Adds what is this rank's of the states that ranks do not own (kinds `summed` and `per_rank`). Their bytes
// are asked for when `writer` wants them.
void add_plugin_states(CheckpointWriter& writer, ParamGroup& group, const Plan& plan, const HookContext& at);

// Fills the group's states of plugins, whose tensors are there. What the checkpoint lacks, and what belongs to another
// layout, is zero afterwards; `notes` gets a line for each.
void load_plugin_states(const CheckpointReader& reader, ParamGroup& group, const Plan& plan, Stream& stream,
                        std::set<std::string>& notes);

// A line for each state in the checkpoint that no plugin of this plan has declared: it is left out.
void note_unknown_states(const CheckpointReader& reader, const ParamStore& store, std::set<std::string>& notes);

}  // namespace orthant
