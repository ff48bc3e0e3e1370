// What the kernel says of a process.
#pragma once

#include <sys/types.h>

namespace orthant {

// As /proc has it: R, S, D (waits for a disk or the network in the kernel), T (stopped), t (traced), Z; 0 where that
// cannot be asked.
char process_state(pid_t process);

// The process that started it, or that inherited it; 0 where that cannot be asked.
pid_t parent_process(pid_t process);

// T or t.
bool is_stopped(char state);

}  // namespace orthant
