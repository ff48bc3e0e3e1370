// MpiWorld: MPI itself, from MPI_Init to MPI_Finalize.
#pragma once

#include <mpi.h>

#include <atomic>

namespace orthant {

// Thread safety: MPI runs with MPI_THREAD_MULTIPLE, because groups may be used by several streams at once.
class MpiWorld {
 public:
  // Errors: Error if MPI cannot be started or cannot serve several threads.
  MpiWorld();
  // Finalizes, which waits for the other ranks; not after a failure, when it might wait for ever: the process then
  // ends without it and mpirun ends the others.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void set_failed() noexcept { failed_ = true; }
  bool failed() const noexcept { return failed_; }

 private:
  int rank_ = 0, size_ = 1;
  bool initialized_here_ = false;
  std::atomic<bool> failed_ = false;
};

// Throws Error with MPI's words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace orthant
