// Whose fault it is that a wait lasts too long, and whose it is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "parallel/local/stall.h"
#include "parallel/local/thread_world.h"
#include "tests/comm/neighbours.h"
#include "tests/comm/processes.h"
#include "tests/comm/rig.h"
#include "tests/support/error_of.h"

namespace orthant::test::stall_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr auto never = std::chrono::seconds(60);

template <class Ready>
void wait_for(Ready ready) {
  for (const auto end = std::chrono::steady_clock::now() + never; !ready() && std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Rank 3 waits for 2, which waits for 1, which waits for 0, which does not come. Rank 3 is the first to wait, and so
// the first whose time is over; its group knows nothing of rank 0.
std::string message_of_chain(const std::function<void(std::atomic<bool>& over)>& instead) {
  std::atomic<int> waiting{0};
  std::atomic<bool> over{false};
  ThreadWorldOptions options;
  options.timeout_seconds = 1.5;
  return error_of([&] {
    run_threads(
        4,
        [&](Communicator& world) {
          Rig rig;
          const auto pair = [&](int low) {  // the pair {low, low + 1}, the others by themselves
            std::vector<int> members = {world.rank()};
            if (world.rank() == low || world.rank() == low + 1) {
              members = {low, low + 1};
            }
            return world.split("pair " + std::to_string(low), members);
          };
          const auto first = pair(0), second = pair(1), third = pair(2);
          try {
            const int rank = world.rank();
            wait_for([&] { return waiting == 3 - rank; });
            if (rank == 0) {
              instead(over);
              return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the one above has waited for longer
            ++waiting;
            Group& below = rank == 1 ? *first : rank == 2 ? *second : *third;
            below.barrier(*rig.stream);
            if (rank < 3) {
              (rank == 1 ? *second : *third).barrier(*rig.stream);
            }
          } catch (const Error&) {
            over = true;
            throw;
          }
        },
        options);
  });
}

TEST(Stall, TheRankThatHoldsUpAChainIsNamed) {
  const std::string message = message_of_chain([](std::atomic<bool>& over) { wait_for([&] { return over.load(); }); });
  EXPECT_THAT(message, HasSubstr("rank 2 did not arrive at barrier #1 (0 bytes) of group 'pair 2' within 1.5 s"));
  EXPECT_THAT(message, HasSubstr("held up by rank 0, for which others wait in turn"));
}

TEST(Stall, AStoppedProcessIsNamedAsStopped) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& stopped = *new (memory) std::atomic<pid_t>{0};
  auto& first_waits = *new (static_cast<char*>(memory) + 64) std::atomic<bool>{false};
  auto& have_said = *new (static_cast<char*>(memory) + 128) std::atomic<int>{0};
  const std::vector<Ended> ended = run_processes(
      3,
      [&](Communicator& world) {
        Rig rig;
        const auto low = world.split("low", world.rank() == 2 ? std::vector<int>{2} : std::vector<int>{0, 1});
        const auto high = world.split("high", world.rank() == 0 ? std::vector<int>{0} : std::vector<int>{1, 2});
        if (world.rank() == 0) {  // stops in the middle of its work
          stopped = getpid();
          raise(SIGSTOP);
          return;
        }
        try {
          wait_for([&] { return stopped != 0 && (world.rank() == 2 || first_waits); });
          first_waits = true;
          (world.rank() == 1 ? low : high)->barrier(*rig.stream);
        } catch (...) {
          // A rank that is killed, or that says it failed, ends the others' waits: each must have said what it saw.
          ++have_said;
          wait_for([&] { return have_said == 2; });
          if (const pid_t pid = stopped; world.rank() == 2 && pid != 0) {
            kill(pid, SIGKILL);
          }
          throw;
        }
      },
      1.5);
  munmap(memory, 4096);
  for (const std::size_t rank : {1u, 2u}) {
    EXPECT_THAT(ended[rank].message, HasSubstr("rank 0 was last heard of"));
    EXPECT_THAT(ended[rank].message, HasSubstr("it is stopped (SIGSTOP, SIGTSTP or Ctrl-Z)"));
  }
}

// The other is busy for three times the timeout, and says so.
TEST(Stall, TheTimeCountsFromTheLastSignOfARankThatIsBusy) {
  ThreadWorldOptions options;
  options.timeout_seconds = 0.6;
  run_threads(
      2,
      [](Communicator& world) {
        Rig rig;
        const auto group = world.split("data", everyone(world));
        if (world.rank() == 1) {
          for (int i = 0; i < 36; ++i) {
            world.beat();
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
        }
        group->barrier(*rig.stream);
        if (world.rank() == 0) {  // the same for a message
          group->recv(rig.tensor_of(DType::f32, {1}, std::vector<float>{0}), 1, *rig.stream);
        } else {
          for (int i = 0; i < 36; ++i) {
            world.beat();
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
          group->send(rig.tensor_of(DType::f32, {1}, std::vector<float>{1}), 0, *rig.stream);
        }
      },
      options);
}

TEST(Stall, ARankThatWasBusyAndThenIsStuckIsNamed) {
  ThreadWorldOptions options;
  options.timeout_seconds = 0.5;
  std::atomic<bool> over{false};
  const std::string message = error_of([&] {
    run_threads(
        2,
        [&](Communicator& world) {
          Rig rig;
          const auto group = world.split("data", everyone(world));
          if (world.rank() == 1) {
            world.beat();
            wait_for([&] { return over.load(); });
            return;
          }
          try {
            group->barrier(*rig.stream);
          } catch (const Error&) {
            over = true;
            throw;
          }
        },
        options);
  });
  EXPECT_THAT(message, HasSubstr("rank 1 did not arrive at barrier #1"));
}

TEST(Stall, ARankThatNeverCameIsNamedAsSuch) {
  const std::shared_ptr<LocalSegment> segment = LocalSegment::create(2);
  segment->set_state(0, RankState::running);
  segment->say_waiting(0, 0b10);
  const Stall stall = find_stall(*segment, 0b10, 60);
  EXPECT_EQ(stall.rank, 1);
  EXPECT_EQ(stall.account, "rank 1 has not come: it was not started, or hangs at its start");
}

// It may wait for somebody to read what it prints.
TEST(Stall, ARankWhoseLauncherIsStoppedIsNotAtFault) {
  const std::shared_ptr<LocalSegment> segment = LocalSegment::create(2);
  segment->set_state(0, RankState::running);
  segment->set_state(1, RankState::running);
  segment->say_waiting(0, 0b10);
  EXPECT_FALSE(find_stall(*segment, 0b10, 60).reader_is_stopped);
  int come[2];
  ASSERT_EQ(pipe(come), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    const pid_t rank = fork();
    if (rank == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      segment->set_state(1, RankState::running);
      _exit(write(come[1], "", 1) == 1 && pause() == 0 ? 0 : 1);
    }
    raise(SIGSTOP);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(come[0], &byte, 1), 1);
  waitpid(launcher, nullptr, WUNTRACED);
  EXPECT_TRUE(find_stall(*segment, 0b10, 60).reader_is_stopped);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  close(come[0]);
  close(come[1]);
}

TEST(Stall, SetsOfRanksAreShort) {
  EXPECT_EQ(names_of(1), "rank 0");
  EXPECT_EQ(names_of(0b1001), "ranks 0, 3");
  EXPECT_EQ(names_of(0b11), "ranks 0, 1");
  EXPECT_EQ(names_of(0b101101111111), "ranks 0 to 6, 8, 9, 11");
  EXPECT_EQ(names_of(~std::uint64_t{0}), "ranks 0 to 63");
}

}  // namespace
}  // namespace orthant::test::stall_test
