// lock_file: flock(2), which signals do not interrupt.
#pragma once

namespace orthant {

// Takes the lock of an open file for this descriptor alone, until its last copy is closed. wait: for whoever holds it.
// Returns 0, or errno: EWOULDBLOCK where somebody holds it and `wait` is false.
int lock_file(int file, bool wait);

}  // namespace orthant
