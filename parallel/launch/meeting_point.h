// Where the ranks of a run meet, for communicators that find each other by an address.
#pragma once

#include <optional>
#include <string>

#include "parallel/launch/external_launcher.h"

namespace orthant {

// The value of ORTHANT_RENDEZVOUS for every rank: "host:port" of rank 0, or "unix:@name" where all ranks are on this
// machine. The same on every rank, from what their launcher tells each of them:
//   - ORTHANT_RENDEZVOUS itself, where it is set;
//   - no launcher: a name of this process;
//   - MASTER_ADDR and MASTER_PORT, where both are set; the next port where torchrun's agent listens at that one;
//   - Slurm: the first node of the step, a port of the job's number; Open MPI on one machine: a name of the job.
// Nothing where the launcher does not say (Open MPI on several machines). Errors: ConfigError for a port that is none.
std::optional<std::string> meeting_point(const EnvironmentLookup& environment,
                                         const std::optional<ExternalRank>& external);

// The same for ranks that this process is about to start, rank 0 on `host`: ORTHANT_RENDEZVOUS, or a port of this
// process.
std::string meeting_point_on(const std::string& host, const EnvironmentLookup& environment);

}  // namespace orthant
