// The folder of a run, when a run of that name is already there.
#pragma once

#include <filesystem>

namespace orthant {

// Which part of the folder makes way.
enum class SetAside {
  everything,    // before any rank starts
  all_but_logs,  // from within a run whose logs are already being written there
};

// Makes way for a new run without losing an old one: what `folder` holds moves to FOLDER.1, or to the first number
// after those that are taken. Returns where it went; empty when there was nothing to move (no folder, or only empty
// folders in it). Errors: Error.
std::filesystem::path set_run_aside(const std::filesystem::path& folder, SetAside what);

}  // namespace orthant
