// Large messages between neighbours at once, on the local communicator: see neighbours.h.
#include "tests/comm/neighbours.h"

#include <gtest/gtest.h>

#include "parallel/local/thread_world.h"
#include "tests/comm/processes.h"

namespace orthant::test::neighbours_test {
namespace {

// From a byte to many times a mailbox, and either side of its two chunks of 128 KB.
const std::vector<std::int64_t> small_sizes{1, 4096, 131072, 262144, 262145, 1 << 20};
const std::vector<std::int64_t> large_sizes{16 << 20};

class NeighbourWorlds : public testing::TestWithParam<int> {};

TEST_P(NeighbourWorlds, ThreadsSendToEachOtherAtOnce) {
  for (const NeighbourGroups groups : {NeighbourGroups::edge, NeighbourGroups::ring}) {
    run_threads(GetParam(), [&](Communicator& world) {
      Neighbours neighbours(world, groups);
      neighbours.run(small_sizes, 3);
      neighbours.run(large_sizes, 1);
    });
  }
}

TEST_P(NeighbourWorlds, ProcessesSendToEachOtherAtOnce) {
  for (const Ended& rank : run_processes(GetParam(), [](Communicator& world) {
         Neighbours neighbours(world, NeighbourGroups::ring);
         neighbours.run(small_sizes, 3);
         neighbours.run(large_sizes, 1);
       })) {
    EXPECT_EQ(rank.code, 0) << rank.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, NeighbourWorlds, testing::Values(2, 3, 4, 8));

// A send that waits for its receiver, and a receiver that waits for its sender, sleep.
TEST(Neighbours, WaitingCostsNoProcessorTime) {
  for (const Ended& rank : run_processes(2, [](Communicator& world) {
         const double used = seconds_used_by_waiting(world);
         require(used < 0.3, "a second of waiting took {} s of processor time", used);
       })) {
    EXPECT_EQ(rank.code, 0) << rank.message;
  }
}

}  // namespace
}  // namespace orthant::test::neighbours_test
