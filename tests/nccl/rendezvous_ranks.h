// What the tests of the rendezvous share: addresses, and ranks as threads.
#pragma once

#include <orthant/error.h>
#include <orthant/handshake.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "plugins/nccl/address.h"
#include "plugins/nccl/rendezvous.h"
#include "tests/support/error_of.h"

namespace orthant::nccl::test {

using orthant::test::error_of;

// An address of this test's own: a name on this machine, or a port that is free now.
inline std::string fresh_name() {
  static std::atomic<int> count = 0;
  return fmt::format("unix:@orthant-test-{}-{}", getpid(), count++);
}
inline std::string free_port() {
  std::mt19937 random(std::random_device{}());
  for (;;) {
    const std::string address = fmt::format("127.0.0.1:{}", 20000 + random() % 10000);
    try {
      listen_at(address);
      return address;
    } catch (const Error&) {
    }
  }
}

inline const std::string secret = "0123456789abcdef0123456789abcdef";

inline RendezvousConfig config(const std::string& address, int rank, int world, double timeout = 30) {
  return {address, "job", {secret, {}}, rank, world, timeout};
}

// Waits for what another thread does.
template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

inline Rendezvous::Handlers ignore() {
  return {[] {}, [](int, const std::string&) {}, [](int) {}};
}

// body on `world` ranks as threads; the message of each rank's error, or "no error".
inline std::vector<std::string> run(int world, const std::function<void(int rank)>& body) {
  std::vector<std::string> messages(world);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] { messages[rank] = error_of([&] { body(rank); }); });
  }
  ranks.clear();
  return messages;
}

// What a rank does first on a connection. False: refused.
inline bool prove(const Socket& socket, const std::string& with) {
  Handshake handshake(Handshake::Side::connects, with);
  try {
    char bytes[100];
    while (!handshake.done()) {
      const ssize_t n = recv(socket.get(), bytes, sizeof(bytes), 0);
      if (n <= 0) {
        return false;
      }
      const std::string answer = handshake.take({bytes, static_cast<std::size_t>(n)});
      send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

// What comes until the connection ends; "..." at its end where it does not end within 10 s.
inline std::string read_all(const Socket& socket) {
  const timeval limit{10, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string all;
  char bytes[1000];
  for (;;) {
    const ssize_t n = recv(socket.get(), bytes, sizeof(bytes), 0);
    if (n <= 0) {
      return n < 0 && errno == EAGAIN ? all + "..." : all;
    }
    all.append(bytes, static_cast<std::size_t>(n));
  }
}

}  // namespace orthant::nccl::test
