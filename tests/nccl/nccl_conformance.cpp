// The conformance suite on the nccl communicator and NCCL itself, a GPU for each rank. Run by scripts/on_gpu.sh.
//
//   comm_conformance_nccl RANKS
#include <orthant/module.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/modules/module.h"
#include "tests/comm/conformance.h"
#include "tests/comm/many_groups.h"
#include "tests/comm/neighbours.h"

namespace {

using namespace orthant;

void run(int rank, int ranks) {
  const test::Rig first("cuda");  // chooses this rank's GPU
  const CommunicatorConfig config{.rank = rank, .world_size = ranks, .timeout_seconds = 120};
  const auto world = create<Communicator>(find_module("communicator", "nccl"), &config);
  const auto passed = [&](const char* what) {
    if (rank == 0) {
      std::printf("%s passed on %d ranks\n", what, ranks);
      std::fflush(stdout);
    }
  };
  try {
    test::Conformance(*world, test::SumOrder::any, "cuda").run({0, 1, 1000, 5003, 1 << 20});
    passed("conformance");
    for (const test::NeighbourGroups groups : {test::NeighbourGroups::edge, test::NeighbourGroups::ring}) {
      test::Neighbours(*world, groups, "cuda").run({1, 4096, 262145, 16 << 20}, 3);
    }
    passed("neighbours");
    test::use_many_groups(*world, 20, 30000, "cuda");
    passed("many groups");
  } catch (const std::exception& error) {
    world->abort(error.what());
    throw;
  }
}

// A rank of its own: CUDA must not be in use before a process forks.
pid_t start(int rank, int ranks) {
  const pid_t pid = fork();
  if (pid != 0) {
    return pid;
  }
  setenv("ORTHANT_LOCAL_RANK", std::to_string(rank).c_str(), 1);
  try {
    run(rank, ranks);
  } catch (const std::exception& error) {
    std::printf("rank %d failed: %s\n", rank, error.what());
    std::fflush(stdout);
    _exit(1);
  }
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 2 ? std::atoi(argv[1]) : 0;
  if (ranks < 1) {
    std::printf("usage: comm_conformance_nccl RANKS, at least 1\n");
    return 2;
  }
  const std::string name = std::to_string(getpid());
  setenv("ORTHANT_RENDEZVOUS", ("unix:@orthant-nccl-conformance-" + name).c_str(), 1);
  setenv("ORTHANT_SECRET", (name + std::string(32, 's')).c_str(), 1);  // no secret: who may run this may join
  for (int rank = 0; rank < ranks; ++rank) {
    if (start(rank, ranks) < 0) {
      std::printf("failed: fork\n");
      return 1;
    }
  }
  bool failed = false;
  for (int status = 0; wait(&status) > 0;) {
    failed = failed || status != 0;
  }
  return failed ? 1 : 0;
}
