// As many groups as a layout of five axes makes on many ranks: lists of every kind, used from two streams at once.
// Throws Error, for the same reason as conformance.h.
#pragma once

#include <orthant/group.h>

#include <memory>
#include <vector>

#include "tests/comm/rig.h"

namespace orthant::test {

// Split number i of `world` ranks: which of them `rank` is with. Everyone; neighbours; blocks; those equal modulo 2, 4,
// ...; each rank alone; everyone but the first; everyone in reverse.
inline std::vector<int> list_of(int i, int rank, int world) {
  const auto together = [&](int other) {
    const int width = 1 << (1 + i / 7 % 3);  // 2, 4, 8
    switch (i % 7) {
      case 1: return rank / 2 == other / 2;
      case 2: return rank / width == other / width;
      case 3: return rank % width == other % width;
      case 4: return rank == other;
      case 5: return (rank == 0) == (other == 0);
      default: return true;
    }
  };
  std::vector<int> members;
  for (int other = 0; other < world; ++other) {
    const int candidate = i % 7 == 6 ? world - 1 - other : other;
    if (together(candidate)) {
      members.push_back(candidate);
    }
  }
  return members;
}

// Makes `count` groups and sums on each of them, every other one on a side stream; n elements.
inline void use_many_groups(Communicator& world, int count, std::int64_t n, const std::string& device = "cpu") {
  Rig rig(device);
  std::vector<std::unique_ptr<Group>> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back(world.split("group " + std::to_string(i), list_of(i, world.rank(), world.size())));
  }
  const auto side = rig.device->make_side_stream();
  std::vector<Tensor> sums;
  for (int i = 0; i < count; ++i) {
    sums.push_back(rig.tensor_of(DType::i32, {n}, std::vector<std::int32_t>(n, 1000 * i + world.rank())));
  }
  side->wait(rig.stream->record());
  for (int i = 0; i < count; ++i) {
    groups[i]->all_reduce(sums[i], ReduceOp::sum, i % 2 == 0 ? *side : *rig.stream);
  }
  side->synchronize();
  for (int i = 0; i < count; ++i) {
    std::int32_t expected = 0;
    for (const int member : groups[i]->members()) {
      expected += 1000 * i + member;
    }
    require(rig.values<std::int32_t>(sums[i]) == std::vector<std::int32_t>(n, expected),
            "the sum of group {} is wrong on rank {}", i, world.rank());
  }
}

}  // namespace orthant::test
