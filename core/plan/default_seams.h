// What stands at a seam where no plugin binds anything: one rank, nothing moved.
#pragma once

#include <orthant/seams.h>

#include <map>
#include <memory>
#include <utility>

namespace orthant {

// Every layer on the only stage; all micro-batches one after another, each forward and then backward.
std::unique_ptr<Schedule> make_single_stage_schedule();

// Stream::attention on whole sequences.
std::unique_ptr<AttentionCore> make_local_attention();

// Keeps tensors where they are.
std::unique_ptr<Stash> make_memory_stash();

}  // namespace orthant
