// What ranks of the nccl communicator say when one of them, or NCCL, fails. A stand-in moves the bytes (fake_nccl.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/comm/neighbours.h"
#include "tests/nccl/communicator_ranks.h"
#include "tests/support/error_of.h"

namespace orthant::nccl::test::failure_test {
namespace {

using orthant::test::error_of;
using orthant::test::everyone;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

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

// All of them ask the others at once who is late, and the first that knows ends them all.
TEST(NcclFailure, RanksAnswerQuestionsUntilTheyHaveEnded) {
  for (int i = 0; i < 8; ++i) {
    const auto messages = run({.ranks = 6, .timeout = 0.1}, [&](Communicator& c) {
      Rig rig;
      const auto group = c.split("data", everyone(c));
      group->all_reduce(floats(rig, 1 + c.rank()), ReduceOp::sum, *rig.stream);
    });
    EXPECT_THAT(messages, testing::Not(testing::Contains("no error")));
  }
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
}  // namespace orthant::nccl::test::failure_test
