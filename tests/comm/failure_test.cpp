// What happens when a rank throws, dies, stays away or calls something else: the others stop and say who and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "parallel/local/thread_world.h"
#include "tests/comm/neighbours.h"
#include "tests/comm/processes.h"
#include "tests/comm/rig.h"
#include "tests/support/error_of.h"

namespace orthant::test::failure_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Tensor floats(Rig& rig, std::int64_t n) {
  return rig.tensor_of(DType::f32, {n}, std::vector<float>(n, 1.0f));
}

TEST(Failure, ARankThatThrowsIsNamedWithItsExitCode) {
  for (const int culprit : {0, 2}) {
    try {
      run_threads(4, [&](Communicator& world) {
        Rig rig;
        const auto group = world.split("data", everyone(world));
        group->barrier(*rig.stream);
        if (world.rank() == culprit) {
          throw ConfigError("the cat sat on it");
        }
        group->all_reduce(floats(rig, 100000), ReduceOp::sum, *rig.stream);
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), fmt::format("rank {}: the cat sat on it", culprit));
      EXPECT_EQ(error.code(), ExitCode::bad_configuration);
    }
  }
}

TEST(Failure, TheOthersLearnWhy) {
  std::string heard;
  error_of([&] {
    run_threads(2, [&](Communicator& world) {
      Rig rig;
      const auto group = world.split("data", everyone(world));
      if (world.rank() == 1) {
        world.abort("rank 1: no more disk");
        world.abort("a later reason");
        return;
      }
      heard = error_of([&] { group->broadcast(floats(rig, 4), 1, *rig.stream); });
    });
  });
  EXPECT_THAT(heard, AllOf(HasSubstr("broadcast #1 (16 bytes) of group 'data'"), HasSubstr("rank 1: no more disk")));
}

// A waiter looks for failures every 50 ms. The bound leaves room for a busy machine and is far below the timeout.
constexpr std::chrono::seconds soon{5};

// Others may be reading its memory when it dies.
TEST(Failure, AProcessKilledInTheMiddleOfALargeExchangeStopsTheOthersSoon) {
  for (const int milliseconds : {30, 90, 150}) {
    const std::vector<Ended> ended = run_processes(4, [&](Communicator& world) {
      Rig rig;
      const auto group = world.split("data", everyone(world));
      const Tensor in = floats(rig, 4 << 18), out = floats(rig, 4 << 18);
      const std::vector<std::int64_t> rows(4, 1 << 18);
      group->barrier(*rig.stream);
      std::jthread killer;
      if (world.rank() == 2) {
        killer = std::jthread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
          raise(SIGKILL);
        });
      }
      for (;;) {
        group->all_to_all(out, rows, in, rows, *rig.stream);
      }
    });
    EXPECT_EQ(ended[2].signal, SIGKILL);
    for (const int rank : {0, 1, 3}) {
      EXPECT_EQ(ended[rank].code, 1);
      EXPECT_THAT(ended[rank].message, AllOf(HasSubstr("all_to_all #"), HasSubstr("of group 'data'"),
                                             HasSubstr("rank 2 was killed by signal 9 (Killed)")));
      EXPECT_LT(ended[rank].at - ended[2].at, soon);
    }
  }
}

TEST(Failure, AKilledProcessStopsTheOthersSoon) {
  const std::vector<Ended> ended = run_processes(4, [](Communicator& world) {
    Rig rig;
    const auto group = world.split("data", everyone(world));
    group->barrier(*rig.stream);
    if (world.rank() == 2) {
      raise(SIGKILL);
    }
    group->all_reduce(floats(rig, 1 << 20), ReduceOp::sum, *rig.stream);
  });
  EXPECT_EQ(ended[2].signal, SIGKILL);
  for (const int rank : {0, 1, 3}) {
    const Ended& other = ended[rank];
    EXPECT_EQ(other.code, 1);
    EXPECT_THAT(other.message, AllOf(HasSubstr("all_reduce #2 (4 MiB) of group 'data'"),
                                     HasSubstr("rank 2 was killed by signal 9 (Killed)")));
    EXPECT_LT(other.at - ended[2].at, soon);
  }
}

TEST(Failure, AKillInTheMiddleOfManyCollectives) {
  const std::vector<Ended> ended = run_processes(3, [](Communicator& world) {
    Rig rig;
    const auto group = world.split("data", everyone(world));
    const Tensor t = floats(rig, 200000);
    std::jthread killer;
    if (world.rank() == 0) {
      killer = std::jthread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        kill(getpid(), SIGKILL);
      });
    }
    for (;;) {
      group->all_reduce(t, ReduceOp::max, *rig.stream);
    }
  });
  EXPECT_EQ(ended[0].signal, SIGKILL);
  for (const std::size_t rank : {1u, 2u}) {
    EXPECT_THAT(ended[rank].message, HasSubstr("rank 0 was killed by signal 9"));
    EXPECT_LT(ended[rank].at - ended[0].at, soon);
  }
}

TEST(Failure, ARankThatStaysAwayIsNamedAfterTheTimeout) {
  ThreadWorldOptions options;
  options.timeout_seconds = 1;
  std::atomic<bool> given_up{false};
  const std::string message = error_of([&] {
    run_threads(
        3,
        [&](Communicator& world) {
          Rig rig;
          const auto group = world.split("data", everyone(world));
          group->barrier(*rig.stream);
          if (world.rank() == 1) {
            for (int i = 0; i < 300 && !given_up; ++i) {  // a slow machine may need more than the timeout
              std::this_thread::sleep_for(std::chrono::milliseconds(100));
            }
            return;
          }
          try {
            group->all_reduce(floats(rig, 4 << 20), ReduceOp::sum, *rig.stream);
          } catch (const Error&) {
            given_up = true;
            throw;
          }
        },
        options);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1 did not arrive at all_reduce #2 (16 MiB) of group 'data' within 1 s")));
}

TEST(Failure, ReceivingWhatNobodySends) {
  ThreadWorldOptions options;
  options.timeout_seconds = 0.2;
  const std::string message = error_of([&] {
    run_threads(
        2,
        [](Communicator& world) {
          Rig rig;
          const auto group = world.split("pipe", everyone(world));
          if (world.rank() == 0) {
            group->recv(floats(rig, 8), 1, *rig.stream);
          } else {
            group->recv(floats(rig, 8), 0, *rig.stream);
          }
        },
        options);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("did not send"), HasSubstr("recv #1 (32 bytes) of group 'pipe' within 0.2 s")));
}

TEST(Failure, ARankThatFinishedIsNotWaitedFor) {
  const std::string message = error_of([&] {
    run_threads(3, [](Communicator& world) {
      Rig rig;
      const auto group = world.split("data", everyone(world));
      if (world.rank() != 2) {
        group->barrier(*rig.stream);
      }
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 2 finished its work without a call to barrier #1"));
}

// Runs two bodies against each other after some common calls, and returns the error.
std::string mismatch(const std::function<void(Group&, Rig&)>& first, const std::function<void(Group&, Rig&)>& second) {
  return error_of([&] {
    run_threads(2, [&](Communicator& world) {
      Rig rig;
      const auto group = world.split("data", everyone(world));
      for (int i = 0; i < 6; ++i) {
        group->barrier(*rig.stream);
      }
      (world.rank() == 0 ? first : second)(*group, rig);
      group->barrier(*rig.stream);
    });
  });
}

TEST(Failure, DifferentCallsFailWithBothViews) {
  const std::string kinds =
      mismatch([](Group& g, Rig& rig) { g.broadcast(floats(rig, 3), 0, *rig.stream); },
               [](Group& g, Rig& rig) { g.all_reduce(floats(rig, 1024), ReduceOp::sum, *rig.stream); });
  EXPECT_THAT(kinds, AllOf(HasSubstr("rank 0 called broadcast #7 of 12 bytes"),
                           HasSubstr("rank 1 called all_reduce #7 of 4096 bytes"), HasSubstr("in group 'data'")));
  const std::string sizes =
      mismatch([](Group& g, Rig& rig) { g.all_reduce(floats(rig, 3), ReduceOp::sum, *rig.stream); },
               [](Group& g, Rig& rig) { g.all_reduce(floats(rig, 100000), ReduceOp::sum, *rig.stream); });
  EXPECT_THAT(sizes, AllOf(HasSubstr("all_reduce #7 of 12 bytes"), HasSubstr("all_reduce #7 of 400000 bytes")));
  const std::string operators =
      mismatch([](Group& g, Rig& rig) { g.all_reduce(floats(rig, 3), ReduceOp::sum, *rig.stream); },
               [](Group& g, Rig& rig) { g.all_reduce(floats(rig, 3), ReduceOp::max, *rig.stream); });
  EXPECT_THAT(operators, HasSubstr("another operator"));
  // Two rooted calls that nobody waits in: found at the next collective.
  const std::string roots = mismatch([](Group& g, Rig& rig) { g.broadcast(floats(rig, 3), 0, *rig.stream); },
                                     [](Group& g, Rig& rig) { g.broadcast(floats(rig, 3), 1, *rig.stream); });
  EXPECT_THAT(roots, AllOf(HasSubstr("with root 0"), HasSubstr("with root 1")));
  const std::string counts = mismatch(
      [](Group& g, Rig& rig) {
        g.all_to_all(floats(rig, 4), std::vector<std::int64_t>{2, 2}, floats(rig, 5), std::vector<std::int64_t>{2, 3},
                     *rig.stream);
      },
      [](Group& g, Rig& rig) {
        g.all_to_all(floats(rig, 4), std::vector<std::int64_t>{2, 2}, floats(rig, 4), std::vector<std::int64_t>{2, 2},
                     *rig.stream);
      });
  EXPECT_THAT(counts, AllOf(HasSubstr("rank 0 sends 12 bytes to rank 1"), HasSubstr("expects 8 bytes")));
  const std::string pair = mismatch([](Group& g, Rig& rig) { g.send(floats(rig, 4), 1, *rig.stream); },
                                    [](Group& g, Rig& rig) { g.recv(floats(rig, 5), 0, *rig.stream); });
  EXPECT_THAT(pair, AllOf(HasSubstr("rank 0 sent 16 bytes"), HasSubstr("expects 20 bytes")));
}

TEST(Failure, DifferentSplitsAreFound) {
  for (const bool pair : {false, true}) {
    const std::string message = error_of([&] {
      run_threads(2, [&](Communicator& world) {
        Rig rig;
        const auto group = world.split(world.rank() == 0 ? "a" : "b", everyone(world));
        if (!pair) {
          group->barrier(*rig.stream);
        } else if (world.rank() == 0) {
          group->send(floats(rig, 4), 1, *rig.stream);
        } else {
          group->recv(floats(rig, 4), 0, *rig.stream);
        }
      });
    });
    EXPECT_THAT(message, HasSubstr("different names or members"));
  }
}

TEST(Failure, WrongShapesAreRefusedBeforeAnythingMoves) {
  run_threads(2, [](Communicator& world) {
    Rig rig;
    Stream& s = *rig.stream;
    const auto group = world.split("data", everyone(world));
    const auto refused = [&](const char* part, const std::function<void()>& call) {
      const std::string message = error_of(call);
      require(message.find(part) != std::string::npos, "expected '{}', found '{}'", part, message);
    };
    refused("all_gather of group 'data': out", [&] { group->all_gather(floats(rig, 5), floats(rig, 3), s); });
    refused("undefined tensor", [&] { group->all_reduce(Tensor(), ReduceOp::sum, s); });
    refused("root 2", [&] { group->broadcast(floats(rig, 3), 2, s); });
    refused("own peer", [&] { group->send(floats(rig, 3), group->rank(), s); });
    refused("u8", [&] { group->all_reduce(rig.device->empty(DType::u8, {3}), ReduceOp::sum, s); });
    const std::vector<std::int64_t> three{1, 1, 1}, many{9, 9};
    refused("3 entries", [&] { group->all_to_all(floats(rig, 3), three, floats(rig, 3), three, s); });
    refused("sums to 18 rows", [&] { group->all_to_all(floats(rig, 3), many, floats(rig, 3), many, s); });
  });
}

TEST(Failure, NothingIsLeftInSharedMemory) {
  const auto list = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().find("orthant") != std::string::npos) {
        names.insert(entry.path().filename().string());
      }
    }
    return names;
  };
  run_processes(2, [](Communicator& world) {
    Rig rig;
    world.split("data", everyone(world))->barrier(*rig.stream);
    raise(SIGKILL);
  });
  EXPECT_EQ(list(), std::set<std::string>{});
}

}  // namespace
}  // namespace orthant::test::failure_test
