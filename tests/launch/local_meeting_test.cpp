// Ranks of one machine that start one by one and come to share memory. Threads, and processes where one must die.
#include "parallel/launch/local_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include <orthant/error.h>

#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::local_meeting_test {
namespace {

using orthant::test::error_of;
using ::testing::HasSubstr;

LocalMeetingOptions options(int rank, int world = 3, double timeout = 30) {
  LocalMeetingOptions made;
  made.secret.value = "0123456789abcdef0123456789abcdef";
  made.key = fmt::format("{} {}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  made.rank = rank;
  made.world_size = world;
  made.timeout_seconds = timeout;
  return made;
}

// A process that is killed at the end of the test, where it has not been before.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      _exit(body());
    }
  }
  ~Child() {
    if (pid_ > 0) {
      kill(SIGKILL);
      wait();
    }
  }
  pid_t pid() const { return pid_; }
  void kill(int number) const { ::kill(pid_, number); }
  int wait() {
    int status = 0;
    if (waitpid(pid_, &status, 0) == pid_) {
      pid_ = 0;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

TEST(LocalMeeting, EveryRankGetsTheSameMemory) {
  auto rank_2 = std::async(std::launch::async, [o = options(2)] { return std::make_unique<LocalMeeting>(o); });
  auto rank_1 = std::async(std::launch::async, [o = options(1)] { return std::make_unique<LocalMeeting>(o); });
  const LocalMeeting rank_0(options(0));
  const std::unique_ptr<LocalMeeting> one = rank_1.get(), two = rank_2.get();
  rank_0.segment()->area(0, 1)[7] = std::byte{42};
  EXPECT_EQ(one->segment()->area(0, 1)[7], std::byte{42});
  EXPECT_EQ(two->segment()->area(0, 1)[7], std::byte{42});
  for (int rank = 0; rank < 3; ++rank) {
    one->segment()->set_state(rank, RankState::finished);
  }
}

TEST(LocalMeeting, WhoseProcessIsKilledIsNamedSoon) {
  const LocalMeeting rank_0(options(0));
  Child rank_1([o = options(1)] {
    const LocalMeeting meeting(o);
    meeting.segment()->set_state(1, RankState::running);
    pause();
    return 0;
  });
  const LocalMeeting rank_2(options(2));
  ASSERT_TRUE(eventually([&] { return rank_0.segment()->state(1) == RankState::running; }));
  EXPECT_FALSE(rank_0.segment()->failed());
  rank_1.kill(SIGKILL);
  ASSERT_TRUE(eventually([&] { return rank_2.segment()->failed(); }));
  EXPECT_EQ(rank_2.segment()->failure()->rank, 1);
  EXPECT_THAT(rank_2.segment()->failure()->why, HasSubstr("rank 1 is gone: the process that started it ended"));
}

TEST(LocalMeeting, SoIsRankZerosByTheOthers) {
  Child rank_0([o = options(0)] {
    const LocalMeeting meeting(o);
    pause();
    return 0;
  });
  const LocalMeeting rank_1(options(1)), rank_2(options(2));
  rank_0.kill(SIGKILL);
  ASSERT_TRUE(eventually([&] { return rank_2.segment()->failed(); }));
  EXPECT_EQ(rank_1.segment()->failure()->rank, 0);
}

TEST(LocalMeeting, WhoHasFinishedMayGo) {
  const LocalMeeting rank_0(options(0));
  auto rank_1 = std::make_unique<LocalMeeting>(options(1));
  auto rank_2 = std::make_unique<LocalMeeting>(options(2));
  rank_0.segment()->set_state(1, RankState::finished);
  rank_1.reset();
  rank_2.reset();  // has not: when this is seen, rank 1's end has been
  ASSERT_TRUE(eventually([&] { return rank_0.segment()->failed(); }));
  EXPECT_EQ(rank_0.segment()->failure()->rank, 2);
}

// A connection that cannot be accepted stays: rank 0 waits, and takes no processor for that.
TEST(LocalMeeting, WithoutADescriptorRankZeroWaits) {
  std::array<int, 2> full{}, freed{};
  ASSERT_EQ(pipe(full.data()), 0);
  ASSERT_EQ(pipe(freed.data()), 0);
  char byte = 0;
  const Child rank_0([&, o = options(0, 2)] {
    const LocalMeeting meeting(o);
    const rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    std::vector<int> taken;
    for (int file = dup(0); file >= 0; file = dup(0)) {
      taken.push_back(file);
    }
    char told = 0;
    if (write(full[1], &told, 1) != 1 || read(freed[0], &told, 1) != 1) {
      return 1;
    }
    for (const int file : taken) {
      close(file);
    }
    pause();
    return 0;
  });
  ASSERT_EQ(read(full[0], &byte, 1), 1);
  auto rank_1 = std::async(std::launch::async, [o = options(1, 2)] { return std::make_unique<LocalMeeting>(o); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double before = processor_seconds(rank_0.pid());
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(processor_seconds(rank_0.pid()) - before, 0.3);
  ASSERT_EQ(write(freed[1], &byte, 1), 1);
  EXPECT_EQ(rank_1.get()->segment()->world_size(), 2);
  for (const int file : {full[0], full[1], freed[0], freed[1]}) {
    close(file);
  }
}

TEST(LocalMeeting, WhatDoesNotFitIsRefused) {
  const LocalMeeting rank_0(options(0)), rank_1(options(1));
  EXPECT_THAT(error_of([&] { LocalMeeting(options(1)); }), HasSubstr("rank 1 is already here"));
  EXPECT_THAT(error_of([&] { LocalMeeting(options(1, 8)); }),
              HasSubstr("rank 1 was told of a world of 8 ranks, rank 0 of one of 3"));
  EXPECT_THAT(error_of([&] { LocalMeeting(options(0)); }), HasSubstr("rank 0 cannot wait for the other ranks"));
}

TEST(LocalMeeting, WithAnotherSecretOrKeyNobodyIsFound) {
  const LocalMeeting rank_0(options(0));
  auto stranger = options(1, 3, 0.1);
  stranger.secret.value[0] = 'x';
  EXPECT_THAT(
      error_of([&] { LocalMeeting meeting(stranger); }),
      HasSubstr("rank 1 did not find rank 0 on this machine within 0.1 s: nobody waits for it with the secret"));
  auto other = options(1, 3, 0.1);
  other.key += "x";
  EXPECT_THAT(error_of([&] { LocalMeeting meeting(other); }), HasSubstr("nobody waits for it"));
  auto early = options(1, 3, 0.1);
  early.secret = {"", "/nowhere/secret"};
  EXPECT_THAT(error_of([&] { LocalMeeting meeting(early); }),
              HasSubstr("the process of rank 0 writes /nowhere/secret, which is not there"));
}

TEST(LocalMeeting, AnotherUserIsRefusedEvenWithTheSecret) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const LocalMeeting rank_0(options(0));
  Child nobody([o = options(1, 3, 0.1)] {
    const bool other = setuid(65534) == 0;
    return other && error_of([&] { LocalMeeting meeting(o); }).find("another user's") != std::string::npos ? 0 : 1;
  });
  EXPECT_EQ(nobody.wait(), 0);
  EXPECT_EQ(error_of([&] { LocalMeeting meeting(options(1)); }), "no error");  // its place is free
}

}  // namespace
}  // namespace orthant::launch_test::local_meeting_test
