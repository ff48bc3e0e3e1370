// Who does not know the secret of the start: what he is told, and what he cannot do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "plugins/nccl/frame.h"
#include "plugins/nccl/hub.h"
#include "tests/nccl/rendezvous_ranks.h"

namespace orthant::nccl::test::stranger_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t greeting_bytes = 24;  // a version and random bytes
constexpr uid_t nobody = 65534;

// Ranks 0 and 1 of two; `visit` comes when rank 0 listens, before rank 1.
template <class Visit>
std::vector<std::string> visit_before_rank_1(const std::string& address, Visit visit) {
  return run(2, [&](int rank) {
    if (rank == 1) {
      require(soon([&] {
                try {
                  connect_to(address);
                  return true;
                } catch (const Error&) {
                  return false;
                }
              }),
              "rank 0 does not listen");
      visit();
    }
    Rendezvous here(config(address, rank, 2));
    here.start(ignore());
    here.all_gather("end", "");
  });
}

TEST(Strangers, AreToldNothing) {
  const std::string hello = encode({FrameType::hello, 1, hello_text(2, "job")});
  const std::string wrong_proof = "orthant1" + std::string(48, 'x');
  for (const std::string& address : {fresh_name(), free_port()}) {
    const auto messages = visit_before_rank_1(address, [&] {
      for (const std::string& said : {hello, wrong_proof, std::string("GET / HTTP/1.1\r\n\r\n")}) {
        const Socket socket = connect_to(address);
        send(socket.get(), said.data(), said.size(), MSG_NOSIGNAL);
        const std::string heard = read_all(socket);
        require(heard.size() <= greeting_bytes, "he was told {} bytes", heard.size());
      }
      require(!prove(connect_to(address), std::string(32, 'x')), "another secret was taken");
    });
    EXPECT_THAT(messages, Each("no error"));
  }
}

TEST(Strangers, WhoListensInRankZerosPlaceLearnsNothingAndIsNotBelieved) {
  const std::string address = free_port();
  const Socket listener = listen_at(address);
  std::string heard;
  std::jthread impostor([&] {
    for (;;) {
      const Socket socket(accept(listener.get(), nullptr, nullptr));
      if (!socket.is_open()) {
        return;
      }
      const std::string greeting = "orthant1" + std::string(16, 'n'), proof(32, 'p');
      send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      std::array<char, 1000> bytes;
      const ssize_t n = recv(socket.get(), bytes.data(), bytes.size(), 0);
      heard.append(bytes.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
      send(socket.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
      heard += read_all(socket);
    }
  });
  auto rank_1 = config(address, 1, 2, 0.3);
  rank_1.job = "a name of a job";
  const std::string message = error_of([&] { Rendezvous here(rank_1); });
  shutdown(listener.get(), SHUT_RDWR);
  impostor.join();
  EXPECT_THAT(message, AllOf(HasSubstr("the other side knows another secret"), Not(HasSubstr(secret))));
  EXPECT_THAT(heard, AllOf(HasSubstr("orthant1"), Not(HasSubstr(secret)), Not(HasSubstr(rank_1.job))));
}

TEST(Strangers, ManyIdleOnesDoNotKeepRanksOut) {
  for (const std::string& address : {fresh_name(), free_port()}) {
    for (const std::size_t many : {64u, 500u}) {
      std::vector<Socket> idle;
      const auto messages = visit_before_rank_1(address, [&] {
        for (std::size_t i = 0; i < many; ++i) {
          idle.push_back(connect_to(address));
        }
      });
      EXPECT_THAT(messages, Each("no error")) << address << ", " << many;
    }
  }
}

// A hub of two ranks that never come.
struct WaitingHub {
  explicit WaitingHub(double stranger_seconds) : hub(listen_at(address), own_end(), options(stranger_seconds)) {}
  Socket own_end() {
    std::array<int, 2> ends{};
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "no socket pair");
    rank_0 = Socket(ends[0]);
    return Socket(ends[1]);
  }
  HubOptions options(double stranger_seconds) const {
    return {.address = address, .job = "job", .secret = secret, .world_size = 2, .stranger_seconds = stranger_seconds};
  }
  std::string address = fresh_name();
  Socket rank_0;
  Hub hub;
};

TEST(Strangers, AnIdleOneIsSentAwaySoon) {
  const WaitingHub waiting(0.1);
  EXPECT_EQ(read_all(connect_to(waiting.address)).size(), greeting_bytes);
}

TEST(Strangers, TheOldestOfManyMakesRoom) {
  const WaitingHub waiting(1000);
  std::vector<Socket> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(connect_to(waiting.address));
  }
  EXPECT_EQ(read_all(idle[0]).size(), greeting_bytes);
  EXPECT_EQ(read_all(idle[100]).size(), greeting_bytes);
  std::array<char, 2 * greeting_bytes> bytes;
  EXPECT_EQ(recv(idle.back().get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(greeting_bytes));
  EXPECT_LT(recv(idle.back().get(), bytes.data(), bytes.size(), MSG_DONTWAIT), 0) << "the newest is still there";
}

TEST(Strangers, WhoDidNotKnowTheSecretIsCountedWhereRanksAreMissing) {
  const std::string address = fresh_name();
  const auto messages = run(2, [&](int rank) {
    auto here = config(address, rank, 2, rank == 0 ? 3 : 1);  // rank 0 still listens when rank 1 gives up
    if (rank == 1) {
      here.secret.value = std::string(32, 'x');
    }
    Rendezvous(here).start(ignore());
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1 did not come"), HasSubstr("did not know the secret of this start"),
                                 Not(HasSubstr(secret))));
  EXPECT_THAT(messages[1], AllOf(HasSubstr("another secret"), Not(HasSubstr(secret))));
}

// The exit code of `body` in a process of another user.
template <class Body>
pid_t as_nobody(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    _exit(setuid(nobody) == 0 && body() ? 0 : 1);
  }
  return pid;
}
bool succeeded(pid_t pid) {
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Strangers, AnotherUserIsRefusedEvenWithTheSecret) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const std::string address = fresh_name();
  const auto messages = visit_before_rank_1(address, [&] {
    const pid_t stranger = as_nobody([&] {
      std::array<char, 100> bytes{};
      sockaddr_un there{};
      there.sun_family = AF_UNIX;
      std::copy(address.begin() + 6, address.end(), there.sun_path + 1);
      const Socket socket(::socket(AF_UNIX, SOCK_STREAM, 0));
      const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() - 5);
      return connect(socket.get(), reinterpret_cast<const sockaddr*>(&there), length) == 0 &&
             recv(socket.get(), bytes.data(), bytes.size(), 0) <= 0;  // not even random bytes
    });
    require(succeeded(stranger), "another user was answered");
  });
  EXPECT_THAT(messages, Each("no error"));
}

TEST(Strangers, AnotherUserInRankZerosPlaceIsNotSpokenTo) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const std::string address = fresh_name();
  std::array<int, 2> ready{}, done{};
  ASSERT_EQ(pipe(ready.data()), 0);
  ASSERT_EQ(pipe(done.data()), 0);
  const pid_t stranger = as_nobody([&] {
    close(done[1]);
    const Socket listener = listen_at(address);
    char byte = 'x';
    const bool told = write(ready[1], &byte, 1) == 1;
    const Socket socket(accept(listener.get(), nullptr, nullptr));
    return told && read_all(socket).empty() && read(done[0], &byte, 1) == 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(error_of([&] { Rendezvous here(config(address, 1, 2, 0.1)); }),
              HasSubstr("a process of another user listens there"));
  close(done[1]);
  EXPECT_TRUE(succeeded(stranger));
  for (const int end : {ready[0], ready[1], done[0]}) {
    close(end);
  }
}

// An address of this machine that is not loopback; empty: none.
std::string address_of_a_network() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return "";
  }
  std::string found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    char host[NI_MAXHOST];
    if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET &&
        getnameinfo(i->ifa_addr, sizeof(sockaddr_in), host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0 &&
        !std::string(host).starts_with("127.")) {
      found = host;
    }
  }
  freeifaddrs(all);
  return found;
}

TEST(Strangers, OtherNetworksDoNotReachRankZero) {
  const std::string network = address_of_a_network();
  if (network.empty()) {
    GTEST_SKIP() << "this machine has no network";
  }
  const std::string loopback = free_port(), port = loopback.substr(loopback.find(':'));
  const Socket listener = listen_at(network + port);
  EXPECT_EQ(error_of([&] { connect_to(network + port); }), "no error");
  EXPECT_NE(error_of([&] { connect_to(loopback); }), "no error");
  EXPECT_EQ(note_of_reach(listener), "");
  EXPECT_THAT(note_of_reach(listen_at(loopback)), HasSubstr("other machines do not reach"));
  EXPECT_THAT(error_of([] { listen_at("192.0.2.1:20000"); }), HasSubstr("No network of this machine has that address"));
}

// Rank 1 finds the secret of an earlier start; the one of this start takes its place while rank 1 waits.
TEST(Secret, AStaleFileIsReadAgain) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("secret-{}", getpid());
  std::filesystem::create_directory(folder);
  const std::filesystem::path file = folder / "secret";
  const auto write = [&](const std::string& text) {
    std::ofstream(folder / "fresh") << text;
    chmod((folder / "fresh").c_str(), 0600);
    std::filesystem::rename(folder / "fresh", file);
  };
  write(std::string(32, 's'));
  const std::string address = fresh_name();
  const auto messages = run(3, [&](int rank) {
    auto here = config(address, rank, 3);
    if (rank != 0) {
      here.secret = {"", file};
    } else {
      here.secret.file = file;  // beside the value
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::filesystem::remove(file);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    std::jthread later([&] {
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        write(secret);
      }
    });
    Rendezvous met(here);
    met.start(ignore());
    met.all_gather("end", "");
  });
  EXPECT_THAT(messages, Each("no error"));
  EXPECT_FALSE(std::filesystem::exists(file)) << "nobody needs it any longer";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace orthant::nccl::test::stranger_test
