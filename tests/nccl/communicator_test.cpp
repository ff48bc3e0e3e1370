// Everything of the nccl communicator but NCCL: a stand-in moves the bytes (fake_nccl.h), ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/comm/conformance.h"
#include "tests/comm/many_groups.h"
#include "tests/comm/neighbours.h"
#include "tests/nccl/communicator_ranks.h"

namespace orthant::nccl::test::communicator_test {
namespace {

using orthant::test::everyone;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

TEST(Nccl, Conforms) {
  for (const int world : {1, 2, 3, 5}) {
    EXPECT_THAT(run({.ranks = world},
                    [](Communicator& c) {
                      orthant::test::Conformance(c).run({0, 1, 1000});
                      orthant::test::Conformance(c, orthant::test::SumOrder::any).run({0, 1, 1000});
                    }),
                Each("no error"))
        << world;
  }
}

// Would wait for ever if a send and a receive shared a connection.
TEST(Nccl, NeighboursSendToEachOtherAtOnce) {
  using orthant::test::NeighbourGroups;
  for (const int world : {2, 3, 4}) {
    for (const NeighbourGroups groups : {NeighbourGroups::edge, NeighbourGroups::ring}) {
      EXPECT_THAT(run({.ranks = world},
                      [&](Communicator& c) {
                        orthant::test::Neighbours neighbours(c, groups);
                        neighbours.run({1, 4096, 300000}, 2);
                      }),
                  Each("no error"))
          << world;
    }
  }
}

TEST(Nccl, ManyGroupsFromTwoStreams) {
  EXPECT_THAT(run({.ranks = 6}, [](Communicator& c) { orthant::test::use_many_groups(c, 30, 300); }), Each("no error"));
}

TEST(Nccl, NothingIsConnectedForGroupsOfOneAndCallsOfNothing) {
  WorldOf setup{.ranks = 2};
  EXPECT_THAT(run(setup,
                  [](Communicator& c) {
                    Rig rig;
                    const auto alone = c.split("alone", {c.rank()});
                    const Tensor t = floats(rig, 3);
                    alone->all_reduce(t, ReduceOp::sum, *rig.stream);
                    alone->barrier(*rig.stream);
                    require(rig.values<float>(t) == std::vector<float>{1, 1, 1}, "a sum of one");
                  }),
              Each("no error"));
  EXPECT_EQ(setup.network->connections(), 0);
  // Nobody answers calls of no elements, so they must not be asked.
  EXPECT_THAT(run(setup,
                  [](Communicator& c) {
                    Rig rig;
                    const auto group = c.split("data", everyone(c));
                    if (c.rank() == 0) {
                      group->all_reduce(floats(rig, 0), ReduceOp::sum, *rig.stream);
                      group->send(floats(rig, 0), 1, *rig.stream);
                    }
                  }),
              Each("no error"));
  EXPECT_EQ(setup.network->connections(), 1);
}

TEST(Nccl, TheHostDoesNotWaitForTheStream) {
  std::atomic<bool> called = false;
  EXPECT_THAT(run({.ranks = 2},
                  [&](Communicator& c) {
                    Rig rig;
                    const auto side = rig.device->make_side_stream();
                    const auto group = c.split("data", everyone(c));
                    const Tensor t = floats(rig, 5);
                    for (int i = 0; i < 300 && c.rank() == 1 && !called; ++i) {
                      std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    }
                    require(c.rank() == 0 || called, "rank 0 waits for rank 1");
                    for (int i = 0; i < 20; ++i) {
                      group->all_reduce(t, ReduceOp::sum, *side);
                    }
                    called = true;
                    side->synchronize();
                    require(rig.values<float>(t)[4] == 1048576.0f, "the sums are wrong");
                  }),
              Each("no error"));
}

// Hosts that waited for each other in the first call of a group would do so for ever here.
TEST(Nccl, GroupsAreFirstUsedInAnyOrder) {
  EXPECT_THAT(
      run({.ranks = 2},
          [](Communicator& c) {
            Rig rig;
            const std::unique_ptr<Group> groups[] = {c.split("a", everyone(c)), c.split("b", everyone(c))};
            const std::unique_ptr<Stream> sides[] = {rig.device->make_side_stream(), rig.device->make_side_stream()};
            for (int i = 0; i < 2; ++i) {
              const int which = (i + c.rank()) % 2;
              groups[which]->all_reduce(floats(rig, 3), ReduceOp::sum, *sides[which]);
            }
            for (const auto& side : sides) {
              side->synchronize();
            }
          }),
      Each("no error"));
}

// Every watchdog is asked for a connection and asks for one: none may wait for one before it sees to the next.
TEST(Nccl, ARingReceivesBeforeItSends) {
  EXPECT_THAT(run({.ranks = 4},
                  [](Communicator& c) {
                    Rig rig;
                    const auto side = rig.device->make_side_stream();
                    const auto group = c.split("ring", everyone(c));
                    const Tensor in = floats(rig, 2), out = rig.tensor_of(DType::f32, {2}, std::vector<float>(2, 5));
                    group->recv(in, (c.rank() + 3) % 4, *side);
                    group->send(out, (c.rank() + 1) % 4, *rig.stream);
                    side->synchronize();
                    require(rig.values<float>(in) == std::vector<float>{5, 5}, "another message came");
                  }),
              Each("no error"));
}

TEST(Nccl, TwoRanksOnOneGpuAreRefused) {
  const auto messages = run({.ranks = 3, .one_gpu = true}, [](Communicator& c) { c.split("data", everyone(c)); });
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("ranks 0 and 1 both use GPU gpu"), HasSubstr("communicator = \"local\""))));
}

}  // namespace
}  // namespace orthant::nccl::test::communicator_test
