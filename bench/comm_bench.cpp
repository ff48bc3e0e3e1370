// all_reduce and all_to_all of the local communicator between processes, and of Open MPI beside it.
//
//   comm_bench [RANKS...]       default 2 4 8; microseconds per call, medians over alternating runs
//
// all_reduce sums f32 in place; all_to_all sends an equal part of its bytes to every rank. Where the build found MPI
// (bin/comm_mpi_peer) and mpirun is there, both are run in turns on the same machine and the ratio is shown.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "bench/comm_bench.h"
#include "parallel/local/channel.h"

namespace {

using namespace orthant;
using Times = std::map<std::pair<std::string, std::size_t>, std::vector<double>>;

void rank_main(const std::shared_ptr<LocalSegment>& segment, int world, int rank) {
  std::vector<int> members;
  for (int r = 0; r < world; ++r) {
    members.push_back(r);
  }
  LocalChannel channel(segment, 0, "all", members, rank, 60);
  std::vector<float> data(bench::sizes[std::size(bench::sizes) - 1] / sizeof(float)), out(data.size());
  for (const std::size_t bytes : bench::sizes) {
    const auto n = static_cast<std::int64_t>(bytes / sizeof(float));
    bench::measure("all_reduce", bytes, rank == 0,
                   [&] { channel.all_reduce(data.data(), n, DType::f32, ReduceOp::sum); });
    const std::vector<std::int64_t> counts(world, n / world);
    bench::measure("all_to_all", bytes, rank == 0,
                   [&] { channel.all_to_all(out.data(), counts, data.data(), counts, DType::f32); });
  }
}

void collect(std::FILE* from, Times& times) {
  char name[64];
  std::size_t bytes = 0;
  double us = 0;
  while (std::fscanf(from, "%63s %zu %lf", name, &bytes, &us) == 3) {
    times[{name, bytes}].push_back(us);
  }
}

void run_local(int world, Times& times) {
  const auto segment = LocalSegment::create(world);
  int ends[2];
  require(pipe(ends) == 0, "cannot make a pipe");
  for (int rank = 0; rank < world; ++rank) {
    if (fork() == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      rank_main(segment, world, rank);
      _exit(0);
    }
  }
  close(ends[1]);
  std::FILE* lines = fdopen(ends[0], "r");
  collect(lines, times);
  std::fclose(lines);
  while (wait(nullptr) > 0) {
  }
}

void run_mpi(int world, const std::string& program, Times& times) {
  const std::string command =
      "mpirun --oversubscribe --allow-run-as-root -n " + std::to_string(world) + " " + program + " 2>/dev/null";
  std::FILE* lines = popen(command.c_str(), "r");
  if (lines != nullptr) {
    collect(lines, times);
    pclose(lines);
  }
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> worlds;
  for (int i = 1; i < argc; ++i) {
    worlds.push_back(std::atoi(argv[i]));
  }
  if (worlds.empty()) {
    worlds = {2, 4, 8};
  }
  const auto peer = std::filesystem::canonical("/proc/self/exe").parent_path() / "comm_mpi_peer";
  const bool with_mpi = std::filesystem::exists(peer) && std::system("command -v mpirun >/dev/null") == 0;
  for (const int world : worlds) {
    Times local, mpi;
    for (int turn = 0; turn < 3; ++turn) {
      run_local(world, local);
      if (with_mpi) {
        run_mpi(world, peer.string(), mpi);
      }
    }
    std::printf("%d ranks, %ld cores\n%-12s %10s %12s %12s %8s\n", world, sysconf(_SC_NPROCESSORS_ONLN), "call",
                "bytes", "local us", "Open MPI us", "ratio");
    for (const auto& [key, us] : local) {
      std::printf("%-12s %10zu %12.1f", key.first.c_str(), key.second, median(us));
      if (mpi.count(key) > 0) {
        std::printf(" %12.1f %8.2f", median(mpi[key]), median(us) / median(mpi[key]));
      }
      std::printf("\n");
    }
  }
  return 0;
}
