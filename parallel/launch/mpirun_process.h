// mpirun, started and watched by the launcher.
//
// Open MPI answers SIGTERM and Ctrl-C by killing all ranks a second later, whatever they are saving. So mpirun never
// sees them: it is started with these signals blocked, and the launcher, which gets them too, sends it SIGUSR1 instead.
// Open MPI hands that to every rank's launcher on every host, and waits for the ranks to end.
//
// Under Slurm its daemons on the other hosts are tasks of a step, which Slurm sends SIGTERM to together with the ranks
// (--signal, scancel, the time limit). A daemon that ends takes the ranks with it, so daemons are started deaf to it.
#pragma once

#include <string>
#include <vector>

#include "parallel/launch/external_launcher.h"

namespace orthant {

// Starts the command and returns its exit code when it has ended (128 + signal). Requests to stop reach the ranks,
// those too that somebody sent to mpirun itself; what kills them: see stop_requests.h. mpirun, and with it the ranks,
// does not outlive this process. Blocks the signals of stop_requests.h in the calling thread meanwhile. Errors: Error
// where it cannot be started.
int run_mpirun(const std::vector<std::string>& command);

// More options of mpirun, by which its daemons are started deaf to SIGTERM under Slurm; none elsewhere, or where the
// user has chosen how daemons are started. daemon: the command that calls become_deaf_daemon, without its words.
std::vector<std::string> options_for_daemons(const std::vector<std::string>& daemon,
                                             const EnvironmentLookup& environment);

// Puts the command in the place of this process, with SIGTERM blocked: Open MPI's daemon gives each rank an empty mask
// again. Errors: Error where it cannot be run.
[[noreturn]] void become_deaf_daemon(const std::vector<std::string>& command);

}  // namespace orthant
