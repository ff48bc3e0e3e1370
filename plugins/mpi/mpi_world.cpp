#include "plugins/mpi/mpi_world.h"

#include <exception>

#include <orthant/error.h>

namespace orthant {

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
}

MpiWorld::~MpiWorld() {
  if (initialized_here_ && !failed_ && std::uncaught_exceptions() == 0) {
    MPI_Finalize();
  }
}

}  // namespace orthant
