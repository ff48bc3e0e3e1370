// Reading what another process of this machine has in its memory: one copy, where shared slots need two and a wait for
// each chunk. Source: Linux, process_vm_readv (2), the "cross memory attach" of MPI libraries.
#pragma once

#include <cstdint>

namespace orthant {

// Where the kernel lets only ancestors look (Yama), lets the parent of this process and its descendants, ranks of one
// launcher among them, look too, until that parent ends. Elsewhere it changes nothing.
void let_siblings_read();

// Copies n bytes at address `from` of `process` to `to`. 0, or the error number: EPERM, ENOSYS where the system forbids
// it, ESRCH where the process is gone, EFAULT where nothing is there.
int read_memory(std::int32_t process, void* to, std::uint64_t from, std::uint64_t n);

}  // namespace orthant
