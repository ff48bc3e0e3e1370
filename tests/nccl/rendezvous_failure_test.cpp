// The rendezvous where something fails: who is named, who is shut out. Ranks as threads, and as processes where one
// must die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>

#include "plugins/nccl/frame.h"
#include "tests/nccl/rendezvous_ranks.h"

namespace orthant::nccl::test::rendezvous_failure_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

TEST(Rendezvous, WhoDoesNotComeIsNamed) {
  const std::string address = fresh_name();
  const auto messages = run(4, [&](int rank) {
    if (rank % 2 == 0) {
      Rendezvous here(config(address, rank, 4, 0.3));
    }
  });
  EXPECT_THAT(messages[0], HasSubstr("ranks 1, 3 did not come to " + address + " within 0.3 s"));
  EXPECT_THAT(messages[2], HasSubstr("ranks 1, 3 did not come"));
  EXPECT_THAT(error_of([&] { Rendezvous(config(fresh_name(), 1, 2, 0.1)); }),
              HasSubstr("rank 1 cannot reach rank 0 at unix:@"));
}

TEST(Rendezvous, WorldsOfDifferentSizesAreRefused) {
  const std::string address = fresh_name();
  const auto messages = run(2, [&](int rank) { Rendezvous here(config(address, rank, rank == 0 ? 2 : 8)); });
  EXPECT_THAT(messages, Each(HasSubstr("rank 1 was told of a world of 8 ranks, rank 0 of one of 2")));
}

TEST(Rendezvous, TwoRunsAtOneAddressAreToldApart) {
  const std::string address = free_port();
  std::atomic<bool> done = false;
  const auto messages = run(4, [&](int i) {
    if (i < 3) {  // the first run; its rank 2 comes when the other has tried
      require(i < 2 || soon([&] { return done.load(); }), "the other run was not refused");
      Rendezvous here(config(address, i, 3));
      return;
    }
    auto other = config(address, 1, 3, 0.3);
    other.job = "other";
    const std::string by_job = error_of([&] { Rendezvous here(other); });
    other.secret.value = std::string(32, 'x');
    const std::string by_secret = error_of([&] { Rendezvous here(other); });
    other.rank = 0;
    const std::string first = error_of([&] { Rendezvous here(other); });
    done = true;
    require(by_job.find("another run ('job') meets at " + address) != std::string::npos, "{}", by_job);
    require(by_secret.find("it knows another secret (another run") != std::string::npos, "{}", by_secret);
    require(first.starts_with("rank 0 cannot listen at " + address), "{}", first);
  });
  EXPECT_THAT(messages, Each("no error"));
}

TEST(Rendezvous, ARankThatComesTwiceIsRefused) {
  const std::string address = fresh_name();
  std::atomic<int> refused = 0;
  run(4, [&](int i) {
    try {
      Rendezvous here(config(address, std::min(i, 2), 4, 0.5));  // rank 2 twice, rank 3 never
    } catch (const Error& error) {
      refused += std::strstr(error.what(), "rank 2 is already here") != nullptr ? 1 : 0;
    }
  });
  EXPECT_EQ(refused, 1);
}

// Bytes that no rank sends, from many connections, before and while the ranks meet.
TEST(Rendezvous, StrangersAreShutOut) {
  const std::string address = free_port();
  std::atomic<bool> stop = false;
  std::jthread stranger([&] {
    std::mt19937 random(3);
    while (!stop) {
      try {
        const Socket socket = connect_to(address);
        if (random() % 2 == 0) {  // a rank gone mad
          prove(socket, secret);
        }
        std::string bytes(1 + random() % 3000, '\0');
        for (char& c : bytes) {
          c = static_cast<char>(random());
        }
        if (random() % 3 == 0) {  // a hello that claims to be 4 GB long
          bytes = encode({FrameType::hello, 1, "x"});
          std::memset(bytes.data() + 12, 0xff, 4);
        } else if (random() % 3 == 0) {  // what no rank may say first, and another run's hello
          bytes = encode({static_cast<FrameType>(1 + random() % 8), static_cast<int>(random()), "2147483648 other"});
        } else if (random() % 3 == 0) {
          bytes = "GET / HTTP/1.1\r\n\r\n";
        }
        send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (random() % 2 == 0) {
          char byte = 0;
          timeval limit{0, 20000};
          setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
          recv(socket.get(), &byte, 1, 0);
        }
      } catch (const Error&) {
      }
    }
  });
  const auto messages = run(3, [&](int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * rank));
    Rendezvous here(config(address, rank, 3));
    here.start(ignore());
    for (int i = 0; i < 200; ++i) {
      require(here.all_gather("meeting", std::to_string(rank)).at(2) == "2", "wrong");
    }
  });
  stop = true;
  EXPECT_THAT(messages, Each("no error"));
}

TEST(Rendezvous, SomethingElseThatListensIsRecognised) {
  const std::string address = free_port();
  const Socket listener = listen_at(address);
  std::jthread other([&] {
    for (;;) {
      const Socket socket(accept(listener.get(), nullptr, nullptr));
      if (!socket.is_open()) {
        return;
      }
      send(socket.get(), "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL);
    }
  });
  EXPECT_THAT(error_of([&] { Rendezvous(config(address, 1, 2, 0.3)); }),
              AllOf(HasSubstr("cannot reach rank 0 at " + address), HasSubstr("what answers is not Orthant")));
  shutdown(listener.get(), SHUT_RDWR);
}

TEST(Rendezvous, AFailureReachesEveryoneOnceAndTheFirstWins) {
  const std::string address = fresh_name();
  std::atomic<int> told = 0;
  std::vector<std::string> reasons(4);
  const auto messages = run(4, [&](int rank) {
    Rendezvous here(config(address, rank, 4));
    auto handlers = ignore();
    handlers.failed = [&] { ++told; };
    here.start(handlers);
    here.all_gather("meeting", "");
    if (rank == 3) {
      here.fail("rank 3 failed: no more disk");
      here.fail("rank 3 failed: a later reason");
    } else {
      const std::string message = error_of([&] { here.all_gather("another meeting", ""); });
      require(message == "another meeting cannot complete: rank 3 failed: no more disk", "{}", message);
    }
    reasons[rank] = here.failure().value_or("none");
    require(soon([&] { return told == 4; }), "{} ranks were told", told.load());
  });
  EXPECT_THAT(messages, Each("no error"));
  EXPECT_THAT(reasons, Each("rank 3 failed: no more disk"));
  EXPECT_EQ(told, 4);
}

TEST(Rendezvous, MeetingsThatDifferOrAreMissedAreNamed) {
  const std::string address = fresh_name();
  const auto differ = run(3, [&](int rank) {
    Rendezvous here(config(address, rank, 3));
    here.start(ignore());
    here.all_gather(rank == 1 ? "split of group 'b'" : "split of group 'a'", "");
  });
  EXPECT_THAT(differ, Each(AllOf(HasSubstr("split of group 'a'"), HasSubstr("split of group 'b'"),
                                 HasSubstr("in the same order on every rank"))));
  const auto late = run(3, [&](int rank) {
    Rendezvous here(config(address, rank, 3, 0.3));
    here.start(ignore());
    if (rank == 1) {
      soon([&] { return here.failure().has_value(); });
    } else {
      here.all_gather("split of group 'a'", "");
    }
  });
  EXPECT_THAT(late[0], HasSubstr("rank 1 did not arrive at split of group 'a' within 0.3 s"));
  EXPECT_EQ(late[2], late[0]);
  const auto gone = run(3, [&](int rank) {
    Rendezvous here(config(address, rank, 3));
    here.start(ignore());
    if (rank != 1) {
      here.all_gather("split of group 'a'", "");
    }
  });
  EXPECT_THAT(gone[2], HasSubstr("rank 1 finished its work without a call to split of group 'a'"));
}

// What the surviving processes of `world` report when rank `dead` is killed.
std::vector<std::string> kill_one(const std::string& address, int world, int dead) {
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (int rank = 0; rank < world; ++rank) {
    int ends[2];
    require(pipe(ends) == 0, "pipe failed");
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      const std::string message = error_of([&] {
        Rendezvous here(config(address, rank, world, 20));
        std::atomic<int> notes = 0;
        auto handlers = ignore();
        handlers.note = [&](int, const std::string&) { ++notes; };
        here.start(handlers);
        here.all_gather("meeting", "");
        here.post(dead, "have met");
        if (rank == dead) {
          require(soon([&] { return notes == world - 1; }), "the others did not meet");
          raise(SIGKILL);
        }
        const auto begin = std::chrono::steady_clock::now();
        require(soon([&] { return here.failure().has_value(); }), "nobody told rank {}", rank);
        const auto waited = std::chrono::steady_clock::now() - begin;
        throw Error(fmt::format("{}|{}", *here.failure(), waited < std::chrono::seconds(5) ? "soon" : "late"));
      });
      const bool written = write(ends[1], message.data(), message.size()) > 0;
      _exit(written ? 0 : 1);
    }
    close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    char text[2000];
    const ssize_t n = read(pipes[i], text, sizeof(text));
    messages.emplace_back(text, n > 0 ? static_cast<std::size_t>(n) : 0);
    close(pipes[i]);
    waitpid(pids[i], nullptr, 0);
  }
  return messages;
}

TEST(Rendezvous, ADeadProcessIsNamedSoon) {
  for (const std::string& address : {fresh_name(), free_port()}) {
    for (const int dead : {0, 2}) {
      const auto messages = kill_one(address, 4, dead);
      for (int rank = 0; rank < 4; ++rank) {
        if (rank != dead) {
          EXPECT_THAT(messages[rank],
                      AllOf(HasSubstr(fmt::format("rank {} ended without a word", dead)), HasSubstr("|soon")));
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::nccl::test::rendezvous_failure_test
