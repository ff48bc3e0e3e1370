// The MPI side of comm_bench: MPI_Allreduce and MPI_Alltoall as MPI does them. Run by comm_bench under mpirun.
#include <mpi.h>

#include "bench/comm_bench.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  namespace bench = orthant::bench;
  std::vector<float> data(bench::sizes[std::size(bench::sizes) - 1] / sizeof(float)), out(data.size());
  for (const std::size_t bytes : bench::sizes) {
    const int n = static_cast<int>(bytes / sizeof(float));
    bench::measure("all_reduce", bytes, rank == 0,
                   [&] { MPI_Allreduce(MPI_IN_PLACE, data.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    bench::measure("all_to_all", bytes, rank == 0, [&] {
      MPI_Alltoall(data.data(), n / world, MPI_FLOAT, out.data(), n / world, MPI_FLOAT, MPI_COMM_WORLD);
    });
  }
  MPI_Finalize();
  return 0;
}
