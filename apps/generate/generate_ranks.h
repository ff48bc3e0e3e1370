// The ranks of `orthant generate --layout`: threads of this process, processes that it starts and watches, or those of
// mpirun, srun or torchrun, of which it is one.
#pragma once

#include <optional>

#include "apps/lm/generate.h"

namespace orthant {

// Sets `run_ranks` where this process is one of several ranks, and shares out threads and memory among those of this
// machine. processes: the ranks are to be processes of this machine. Returns an exit code where this process has
// started them, and they have answered. Errors: ConfigError for a communicator that cannot serve such ranks; those of
// generate.
std::optional<int> arrange_ranks(GenerateOptions& options, bool processes);

// Whether this process is the one that tells what came of it.
bool speaks_for_ranks();

}  // namespace orthant
