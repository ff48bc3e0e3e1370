#include "mpi_world.h"

#include <exception>
#include <limits>

#include <orthant/error.h>

namespace orthant {
namespace {

constexpr int busy_tag = 1, waiting_tag = 2;

}  // namespace

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail("{} failed: {}", call, text);
  }
}

MpiWorld::MpiWorld() {
  int initialized = 0, provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    initialized_here_ = true;
  }
  require(provided >= MPI_THREAD_MULTIPLE,
          "this MPI was built without MPI_THREAD_MULTIPLE (it offers level {}), which the mpi communicator needs: use "
          "another MPI, or run.communicator = \"local\" on one machine",
          provided);
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &signs_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(signs_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  heard_.resize(size_);
}

MpiWorld::~MpiWorld() {
  if (initialized_here_ && !failed_ && std::uncaught_exceptions() == 0) {
    MPI_Finalize();
  }
}

void MpiWorld::say_busy(double every_seconds) noexcept {
  say(busy_tag, &Heard::busy, every_seconds);
}

void MpiWorld::say_waiting(double every_seconds) noexcept {
  say(waiting_tag, &Heard::waiting, every_seconds);
}

// A message without bytes leaves at once, and nobody need wait for its end.
void MpiWorld::say(int tag, Clock::time_point Heard::*own, double every_seconds) noexcept {
  {
    const std::lock_guard lock(mutex_);
    Clock::time_point& last = heard_[rank_].*own;
    const Clock::time_point now = Clock::now();
    if (last != Clock::time_point{} && std::chrono::duration<double>(now - last).count() < every_seconds) {
      return;
    }
    last = now;
  }
  for (int other = 0; other < size_ && !failed(); ++other) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (other != rank_ && MPI_Isend(nullptr, 0, MPI_BYTE, other, tag, signs_, &request) == MPI_SUCCESS) {
      MPI_Request_free(&request);
    }
  }
}

void MpiWorld::hear() {
  const std::lock_guard lock(mutex_);
  for (;;) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, signs_, &there, &message, &status), "MPI_Improbe");
    if (there == 0) {
      return;
    }
    check_mpi(MPI_Mrecv(nullptr, 0, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    Heard& from = heard_[status.MPI_SOURCE];
    (status.MPI_TAG == busy_tag ? from.busy : from.waiting) = Clock::now();
  }
}

std::vector<MpiWorld::Signs> MpiWorld::signs() const {
  const std::lock_guard lock(mutex_);
  const auto since = [now = Clock::now()](Clock::time_point then) {
    return then == Clock::time_point{} ? std::numeric_limits<double>::infinity()
                                       : std::chrono::duration<double>(now - then).count();
  };
  std::vector<Signs> signs;
  for (const Heard& heard : heard_) {
    signs.push_back({since(heard.busy), since(heard.waiting)});
  }
  return signs;
}

}  // namespace orthant
