// What a study does between a request to stop and the end of what runs.
#pragma once

namespace orthant {

// Waits `seconds`. Errors: Error with 128 + the signal's number where another request comes, SIGUSR1 aside: whoever
// waits gives up, and the end of its ChildProcesses kills them.
void wait_or_give_up(double seconds);

}  // namespace orthant
