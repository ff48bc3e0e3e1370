// MpiWorld: MPI itself, from MPI_Init to MPI_Finalize.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

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
  // Signs of life between ranks, as small messages of their own: "busy" (Communicator::beat) and "I wait, too", which a
  // rank sends that has waited for long. Both: at most every `every_seconds`, and never fail.
  void say_busy(double every_seconds) noexcept;
  void say_waiting(double every_seconds) noexcept;
  // Takes in what has come. A sign counts from when it is taken in, so whoever waits does this again and again.
  void hear();
  // How long ago each rank gave a sign, in seconds; infinite: never. Of the caller itself, what it said.
  struct Signs {
    double since_busy, since_waiting;
  };
  std::vector<Signs> signs() const;

  void set_failed() noexcept { failed_ = true; }
  bool failed() const noexcept { return failed_; }

 private:
  int rank_ = 0, size_ = 1;
  bool initialized_here_ = false;
  std::atomic<bool> failed_ = false;

  using Clock = std::chrono::steady_clock;
  struct Heard {
    Clock::time_point busy{}, waiting{};  // the clock's epoch: never
  };
  void say(int tag, Clock::time_point Heard::*own, double every_seconds) noexcept;
  mutable std::mutex mutex_;
  std::vector<Heard> heard_;  // by rank
  MPI_Comm signs_ = MPI_COMM_NULL;
};

// Throws Error with MPI's words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace orthant
