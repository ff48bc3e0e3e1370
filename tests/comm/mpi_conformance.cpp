// The conformance suite on the mpi communicator: one rank. Run under mpirun by mpi_test.cpp.
//
//   comm_conformance_mpi            the suite
//   comm_conformance_mpi late       rank 1 stays away from a barrier for longer than the timeout
//   comm_conformance_mpi crowd      100 groups; messages and sums of all ranks at once
//   comm_conformance_mpi splits     rank 1 splits another group than the others
//   comm_conformance_mpi missing    rank 1 stays away from a split for longer than the timeout
//   comm_conformance_mpi busy       rank 1 comes three times as late as the timeout allows, and says that it is busy
//   comm_conformance_mpi chain      rank 2 waits for 1, which waits for 0 in another group, which stays away
//   comm_conformance_mpi idle       rank 0 sends and receives for a second before rank 1 does, and counts its work
//   comm_conformance_mpi neighbours large messages between neighbours at once, from side streams
#include <orthant/module.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "core/modules/module.h"
#include "tests/comm/conformance.h"
#include "tests/comm/many_groups.h"
#include "tests/comm/neighbours.h"

namespace {

using namespace orthant;

void run(const char* mode) {
  const Module module = find_module("communicator", "mpi");
  require(std::strcmp(module.entry->name, "mpi") == 0, "the module says {}", module.entry->name);
  CommunicatorConfig config;
  const auto is = [mode](const char* name) { return std::strcmp(mode, name) == 0; };
  config.timeout_seconds = is("late") || is("missing") || is("busy") ? 0.5 : is("chain") ? 1 : 60;
  const auto world = create<Communicator>(module, &config);
  if (is("late")) {
    test::Rig rig;
    const auto group = world->split("data", test::everyone(*world));
    group->barrier(*rig.stream);
    if (world->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    group->barrier(*rig.stream);
    return;
  }
  if (is("busy")) {
    test::Rig rig;
    const auto group = world->split("data", test::everyone(*world));
    for (int i = 0; i < 30 && world->rank() == 1; ++i) {
      world->beat();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    group->barrier(*rig.stream);
    if (world->rank() == 0) {
      std::printf("busy passed\n");
    }
    return;
  }
  if (is("chain")) {
    test::Rig rig;
    const int rank = world->rank();
    const auto low = world->split("low", rank == 2 ? std::vector<int>{2} : std::vector<int>{0, 1});
    const auto high = world->split("high", rank == 0 ? std::vector<int>{0} : std::vector<int>{1, 2});
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(10));
    } else if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      low->barrier(*rig.stream);
    }
    high->barrier(*rig.stream);
    return;
  }
  if (is("splits") || is("missing")) {
    if (is("missing") && world->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    world->split(is("splits") && world->rank() == 1 ? "b" : "a", test::everyone(*world));
    return;
  }
  if (is("crowd")) {
    test::use_many_groups(*world, 100, 300);
    test::use_many_groups(*world, 7, 30000);
    test::Neighbours(*world, test::NeighbourGroups::ring).run({1, 262145}, 2);
    if (world->rank() == 0) {
      std::printf("crowd passed on %d ranks\n", world->size());
    }
    return;
  }
  if (is("idle")) {
    std::printf("rank %d waited with %.3f s of processor time\n", world->rank(), test::seconds_used_by_waiting(*world));
    return;
  }
  if (is("neighbours")) {
    for (const test::NeighbourGroups groups : {test::NeighbourGroups::edge, test::NeighbourGroups::ring}) {
      test::Neighbours neighbours(*world, groups);
      neighbours.run({1, 4096, 131072, 262144, 262145, 1 << 20}, 3);
      neighbours.run({16 << 20}, 1);
    }
    if (world->rank() == 0) {
      std::printf("neighbours passed on %d ranks\n", world->size());
    }
    return;
  }
  test::Conformance(*world).run({0, 1, 1000, 5003});
  if (world->rank() == 0) {
    std::printf("conformance passed on %d ranks\n", world->size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}
