// Several machines: a hostfile, and the mpirun command that starts the ranks on them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "parallel/launch/external_launcher.h"

namespace orthant {

struct Host {
  std::string name;
  int slots = 1;
};

// Lines "host slots=N" (slots default to 1); # starts a comment.
// Errors: ConfigError with file:line for a line of another form, a host that stands twice where that is refused, one
// whose name begins with '-', or a file without hosts.
enum class Repeats { are_refused, add_up };  // a line for each slot, as PBS and LSF write them
std::vector<Host> read_hostfile(const std::filesystem::path& file, Repeats repeats = Repeats::are_refused);

// The file in which PBS or LSF names the hosts of this job, a line for each slot; empty: there is none.
std::filesystem::path allocated_hosts(const EnvironmentLookup& environment);

// The command that starts `world_size` ranks by mpirun, on the hosts of the file or, where it is empty, all on this
// machine; with the environment variables in `exported` (NAME=value) for every rank.
// Errors: ConfigError when the hosts have fewer slots than `world_size`, or when mpirun is not in PATH.
std::vector<std::string> mpirun_command(const std::filesystem::path& hostfile, int world_size,
                                        const std::vector<std::string>& exported,
                                        const std::vector<std::string>& rank_command,
                                        Repeats repeats = Repeats::are_refused);

}  // namespace orthant
