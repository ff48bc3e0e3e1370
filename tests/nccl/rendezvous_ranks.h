// What the tests of the rendezvous share: addresses, and ranks as threads.
#pragma once

#include <orthant/error.h>
#include <unistd.h>

#include <atomic>
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

inline RendezvousConfig config(const std::string& address, int rank, int world, double timeout = 30) {
  return {address, "job", rank, world, timeout};
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
  std::vector<std::string> messages(static_cast<std::size_t>(world));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] { messages[static_cast<std::size_t>(rank)] = error_of([&] { body(rank); }); });
  }
  ranks.clear();
  return messages;
}

}  // namespace orthant::nccl::test
