// mpirun, started and watched by the launcher.
//
// Open MPI answers SIGTERM and Ctrl-C by killing all ranks a second later, whatever they are saving. So mpirun never
// sees them: it is started with these signals blocked, and the launcher, which gets them too, sends it SIGUSR1 instead.
// Open MPI hands that to every rank's launcher on every host, and waits for the ranks to end.
#pragma once

#include <string>
#include <vector>

namespace orthant {

// Starts the command and returns its exit code when it has ended (128 + signal). Requests to stop reach the ranks,
// those too that somebody sent to mpirun itself; what kills them: see stop_requests.h. mpirun, and with it the ranks,
// does not outlive this process. Blocks the signals of stop_requests.h in the calling thread meanwhile. Errors: Error
// where it cannot be started.
int run_mpirun(const std::vector<std::string>& command);

}  // namespace orthant
