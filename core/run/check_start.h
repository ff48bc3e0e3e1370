// What can be known to fail before any rank starts.
#pragma once

#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

// Where the ranks of a configuration are to run.
enum class Ranks {
  processes,  // of this machine: train, launch
  threads,    // of this process, over shared memory whatever run.communicator says: verify, bench step
  elsewhere   // perhaps on other machines: config, plan, a dry run, a hostfile
};

struct StartCheck {
  int world_size = 1;              // of the layout
  std::vector<std::string> notes;  // a sentence for each setting that could not be checked here, or is not used
};

// Checks the layout, the names of device and communicator and that they fit each other, and that device, communicator
// and data can be opened on this machine; what only the ranks' machines must have is noted where they are elsewhere.
// Where nothing else is wrong, memory.limit is checked, and memory.recompute = "fit" becomes what fits
// (promise_memory). begins: a run that goes on from a checkpoint does not read train.from, so it is not checked.
// Errors: ConfigError with everything that is wrong, each at the value to change.
StartCheck check_start(Config& config, Ranks ranks, bool begins = true);

}  // namespace orthant
