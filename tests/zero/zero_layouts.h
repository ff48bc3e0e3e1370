// Layouts with sharded state, and the comparison of what they computed.
#pragma once

#include <string>

#include "tests/support/parity.h"

namespace orthant::zero_test {

// The data axis at a ZeRO stage, every group sharded however small. `more`: further lines of its table.
inline std::string zero(int stage, int ranks, const std::string& more = "whole_below = 0\n") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\n{}", ranks, stage, more);
}
inline std::string with_expert(int ranks) {
  return fmt::format("[plugins.expert]\nsize = {}\n", ranks);
}

// Sums of sums by shard, or by micro-batch where it is layered, may round otherwise, in fp64.
inline void expect_same_bits(const Snapshot& a, const Snapshot& b, const std::string& what) {
  test::expect_same_bits(a, b, what, 1e-14);
}

}  // namespace orthant::zero_test
