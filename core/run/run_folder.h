// The folder of a run, when a run of that name is already there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace orthant {

// Below a run folder: the logs of ranks that are starting, while `logs` is still an earlier run's.
inline constexpr const char* starting_logs = "logs.starting";

// Before ranks start anew in `folder`: whether an earlier run lies there, so that their logs have to wait in
// starting_logs. What another start left in there is removed. Errors: Error where `folder` is a file.
bool holds_earlier_run(const std::filesystem::path& folder);

// Which part of the folder makes way.
enum class SetAside {
  everything,    // but starting_logs, which become the logs of the folder
  all_but_logs,  // where the new run's logs are being written in `logs` already
};

// Makes way for a new run without losing an old one: what `folder` holds moves to FOLDER.1, or to the first number
// after those that are taken. Returns where it went; empty when there was nothing to move (no folder, or only empty
// folders in it). Errors: Error.
std::filesystem::path set_run_aside(const std::filesystem::path& folder, SetAside what);

// What to say of a run that was set aside, and how to go on with it.
std::string where_kept(const std::filesystem::path& aside);

// Whether a run with this --resume goes on in `folder`: "auto", or a checkpoint that lies in it. Otherwise it is new
// there.
bool goes_on_in(const std::filesystem::path& folder, const std::string& resume);

// Before a run goes on from a checkpoint that is not its newest: the later ones would pass for its own. They move from
// `checkpoints` to CHECKPOINTS.N; returns where, empty when there were none. Errors: Error.
std::filesystem::path set_later_checkpoints_aside(const std::filesystem::path& checkpoints, std::int64_t step);

}  // namespace orthant
