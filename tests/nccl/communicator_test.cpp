// Everything of the nccl communicator but NCCL: a stand-in moves the bytes (fake_nccl.h), ranks are threads.
#include "plugins/nccl/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/comm/conformance.h"
#include "tests/comm/many_groups.h"
#include "tests/comm/neighbours.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/support/error_of.h"

namespace orthant::nccl::test::communicator_test {
namespace {

using orthant::test::error_of;
using orthant::test::everyone;
using orthant::test::Rig;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

struct WorldOf {
  int ranks = 2;
  double timeout = 30;
  bool one_gpu = false;
  std::shared_ptr<FakeNetwork> network = std::make_shared<FakeNetwork>();
};

// The message of each rank's error, or "no error". As in a run, a failure is told to the others before it is thrown on.
std::vector<std::string> run(const WorldOf& setup, const std::function<void(Communicator&)>& body) {
  static std::atomic<int> count = 0;
  const std::string address = fmt::format("unix:@orthant-nccl-test-{}-{}", getpid(), count++);
  std::vector<std::string> messages(setup.ranks, "no error");
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < setup.ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto api = std::make_shared<FakeNccl>(setup.network, setup.one_gpu ? "gpu" : fmt::format("gpu {}", rank));
        const auto communicator = make_nccl_communicator(
            api, {address, "test", {std::string(32, 's'), {}}, rank, setup.ranks, setup.timeout});
        try {
          body(*communicator);
        } catch (const std::exception& error) {
          communicator->abort(error.what());
          throw;
        }
      } catch (const std::exception& error) {
        messages[rank] = error.what();
      }
    });
  }
  ranks.clear();
  return messages;
}

Tensor floats(Rig& rig, std::int64_t n) {
  return rig.tensor_of(DType::f32, {n}, std::vector<float>(n, 1.0f));
}

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

TEST(NcclFailure, ARankThatThrowsIsNamed) {
  const auto messages = run({.ranks = 4}, [](Communicator& c) {
    Rig rig;
    const auto group = c.split("data", everyone(c));
    group->barrier(*rig.stream);
    if (c.rank() == 2) {
      throw ConfigError("the cat sat on it");
    }
    group->all_reduce(floats(rig, 1000), ReduceOp::sum, *rig.stream);
  });
  EXPECT_EQ(messages[2], "the cat sat on it");
  for (const std::size_t rank : {0u, 1u, 3u}) {
    EXPECT_THAT(messages[rank], HasSubstr("of group 'data' cannot complete: rank 2 failed: the cat sat on it"));
  }
}

TEST(NcclFailure, ARankThatStaysAwayIsNamedAfterTheTimeout) {
  std::atomic<bool> given_up = false;
  const auto messages = run({.ranks = 3, .timeout = 0.5}, [&](Communicator& c) {
    Rig rig;
    const auto group = c.split("data", everyone(c));
    group->barrier(*rig.stream);
    for (int i = 0; i < 300 && c.rank() == 1 && !given_up; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const std::string message = error_of([&] { group->all_reduce(floats(rig, 4096), ReduceOp::sum, *rig.stream); });
    given_up = true;
    throw Error(message);
  });
  EXPECT_THAT(
      messages[0],
      HasSubstr("rank 1 did not arrive at all_reduce #2 (16384 bytes) of group 'data' within 0.5 s: stuck or busy"));
  EXPECT_THAT(messages[1],
              HasSubstr("all_reduce #2 (16384 bytes) of group 'data' cannot complete: rank 1 did not arrive"));
  EXPECT_THAT(messages[2], HasSubstr("rank 1 did not arrive"));
}

TEST(NcclFailure, TheTimeCountsFromTheLastSignOfARankThatIsBusy) {
  const auto messages = run({.ranks = 3, .timeout = 0.5}, [&](Communicator& c) {
    Rig rig;
    const auto group = c.split("data", everyone(c));
    for (int i = 0; i < 30 && c.rank() == 1; ++i) {
      c.beat();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    group->barrier(*rig.stream);
    rig.stream->synchronize();
  });
  EXPECT_THAT(messages, Each("no error"));
}

// Its first exchange connects pairs, for which NCCL keeps the hosts.
TEST(NcclFailure, ARankThatStaysAwayFromTheFirstExchangeIsNamedAndOneThatIsBusyIsNot) {
  std::atomic<bool> given_up = false;
  const auto messages = [&](bool beats) {
    given_up = false;
    return run({.ranks = 2, .timeout = 0.5}, [&](Communicator& c) {
      Rig rig;
      const auto group = c.split("data", everyone(c));
      for (int i = 0; i < (beats ? 30 : 6000) && c.rank() == 1 && !given_up; ++i) {
        if (beats) {
          c.beat();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      const Tensor in = floats(rig, 2), out = floats(rig, 2);
      const std::vector<std::int64_t> one_each = {1, 1};
      const std::string message = error_of([&] { group->all_to_all(out, one_each, in, one_each, *rig.stream); });
      given_up = true;
      require(message == "no error", "{}", message);
      rig.stream->synchronize();
    });
  };
  EXPECT_THAT(messages(true), Each("no error"));
  EXPECT_THAT(messages(false)[0],
              HasSubstr("rank 1 did not arrive at all_to_all #1 (8 bytes) of group 'data' within 0.5 s"));
}

TEST(NcclFailure, AConnectionThatIsNotMadeIsGivenUp) {
  WorldOf setup{.ranks = 2, .timeout = 0.4};
  setup.network->connect_nobody();
  EXPECT_THAT(run(setup, [](Communicator& c) { c.split("data", everyone(c)); }),
              Each(AllOf(HasSubstr("split of group 'data' cannot complete: NCCL did not connect rank "),
                         HasSubstr("for split of group 'data' within 0.4 s, though they answer"))));
}

// Rank 2 waits for 1, which waits for 0 in another group.
TEST(NcclFailure, TheRankThatHoldsUpAChainIsNamed) {
  std::atomic<bool> given_up = false;
  const auto messages = run({.ranks = 3, .timeout = 1}, [&](Communicator& c) {
    Rig rig;
    const auto low = c.split("low", c.rank() == 2 ? std::vector<int>{2} : std::vector<int>{0, 1});
    const auto high = c.split("high", c.rank() == 0 ? std::vector<int>{0} : std::vector<int>{1, 2});
    for (int i = 0; i < 300 && c.rank() == 0 && !given_up; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (c.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      low->barrier(*rig.stream);
    }
    const std::string message = error_of([&] {
      high->barrier(*rig.stream);
      rig.stream->synchronize();
      high->barrier(*rig.stream);
    });
    given_up = true;
    throw Error(message);
  });
  EXPECT_THAT(messages[2],
              HasSubstr("rank 0 makes no call that others wait for: stuck or busy elsewhere; rank 1 did not "
                        "arrive at barrier #1 (0 bytes) of group 'high' within 1 s"));
}

TEST(NcclFailure, AStuckStreamIsFreedAndTheNextCallSaysWhy) {
  std::atomic<bool> given_up = false;
  const auto messages = run({.ranks = 2, .timeout = 0.5}, [&](Communicator& c) {
    Rig rig;
    const auto side = rig.device->make_side_stream();
    const auto group = c.split("data", everyone(c));
    if (c.rank() == 1) {
      for (int i = 0; i < 300 && !given_up; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      return;
    }
    group->all_reduce(floats(rig, 4), ReduceOp::sum, *side);
    const std::string freed = error_of([&] { side->synchronize(); });
    require(freed == "the connection was aborted", "{}", freed);
    const std::string message = error_of([&] { group->barrier(*rig.stream); });
    given_up = true;
    throw Error(message);
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("barrier #2"), HasSubstr("rank 1 did not arrive at all_reduce #1")));
}

TEST(NcclFailure, DifferentCallsAreFoundWhenTheyHang) {
  const auto views = [](const std::function<void(Group&, Rig&)>& first,
                        const std::function<void(Group&, Rig&)>& second) {
    return run({.ranks = 2, .timeout = 0.3}, [&](Communicator& c) {
      Rig rig;
      const auto group = c.split("data", everyone(c));
      (c.rank() == 0 ? first : second)(*group, rig);
    })[0];
  };
  EXPECT_THAT(views([](Group& g, Rig& rig) { g.all_reduce(floats(rig, 3), ReduceOp::sum, *rig.stream); },
                    [](Group& g, Rig& rig) { g.all_reduce(floats(rig, 5), ReduceOp::sum, *rig.stream); }),
              AllOf(HasSubstr("calls all_reduce of 12 bytes of f32, sum"),
                    HasSubstr("calls all_reduce of 20 bytes of f32, sum"), HasSubstr("as #1 of group 'data'")));
  EXPECT_THAT(views([](Group& g, Rig& rig) { g.send(floats(rig, 4), 1, *rig.stream); },
                    [](Group& g, Rig& rig) { g.recv(floats(rig, 5), 0, *rig.stream); }),
              AllOf(HasSubstr("a message of 16 bytes"), HasSubstr("a message of 20 bytes")));
  EXPECT_THAT(views([](Group& g, Rig& rig) { g.recv(floats(rig, 4), 1, *rig.stream); },
                    [](Group& g, Rig& rig) { g.recv(floats(rig, 4), 0, *rig.stream); }),
              AllOf(HasSubstr("did not arrive at recv #1 (16 bytes) of group 'data'")));
}

TEST(NcclFailure, DifferentSplitsAreNamed) {
  EXPECT_THAT(run({.ranks = 3}, [](Communicator& c) { c.split(c.rank() == 1 ? "b" : "a", everyone(c)); }),
              Each(HasSubstr("must be called in the same order on every rank")));
  EXPECT_THAT(run({.ranks = 2},
                  [](Communicator& c) {
                    c.split("a", c.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0});
                  }),
              Each(HasSubstr("lists of members do not partition the world of 2")));
  EXPECT_THAT(run({.ranks = 2}, [](Communicator& c) { c.split("a", {1 - c.rank()}); }),
              Each(HasSubstr("must pass the list that it belongs to")));
}

TEST(NcclFailure, ARankThatFinishedIsNotWaitedForLong) {
  const auto begin = std::chrono::steady_clock::now();
  const auto messages = run({.ranks = 3, .timeout = 60}, [](Communicator& c) {
    Rig rig;
    const auto group = c.split("data", everyone(c));
    if (c.rank() != 2) {
      group->barrier(*rig.stream);
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  EXPECT_THAT(messages[0],
              HasSubstr("rank 2 finished its work without a call to barrier #1 (0 bytes) of group 'data'"));
}

TEST(NcclFailure, AnErrorThatNcclMeetsOnItsOwnEndsTheRun) {
  WorldOf setup{.ranks = 2};
  const auto messages = run(setup, [&](Communicator& c) {
    Rig rig;
    const auto group = c.split("data", everyone(c));
    if (c.rank() == 1) {
      setup.network->break_all("unhandled system error: link down");
      for (int i = 0; i < 300; ++i) {  // it is looked for, not only met in the next call
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        group->all_reduce(floats(rig, 0), ReduceOp::sum, *rig.stream);
      }
      return;
    }
    group->barrier(*rig.stream);
  });
  EXPECT_THAT(messages, Each(HasSubstr("unhandled system error: link down")));
}

}  // namespace
}  // namespace orthant::nccl::test::communicator_test
