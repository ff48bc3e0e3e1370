// Ranks of the nccl communicator as threads, over a stand-in for NCCL.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "plugins/nccl/nccl_communicator.h"
#include "tests/comm/rig.h"
#include "tests/nccl/fake_nccl.h"

namespace orthant::nccl::test {

using orthant::test::Rig;

struct WorldOf {
  int ranks = 2;
  double timeout = 30;
  bool one_gpu = false;
  std::shared_ptr<FakeNetwork> network = std::make_shared<FakeNetwork>();
};

// The message of each rank's error, or "no error". As in a run, a failure is told to the others before it is thrown on.
inline std::vector<std::string> run(const WorldOf& setup, const std::function<void(Communicator&)>& body) {
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

inline Tensor floats(Rig& rig, std::int64_t n) {
  return rig.tensor_of(DType::f32, {n}, std::vector<float>(n, 1.0f));
}

}  // namespace orthant::nccl::test
