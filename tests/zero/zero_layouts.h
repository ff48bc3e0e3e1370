// Layouts with sharded state, and the comparison of what they computed.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/run/verify.h"
#include "tests/support/experiment.h"

namespace orthant::zero_test {

// The data axis at a ZeRO stage, every group sharded however small. `more`: further lines of its table.
inline std::string zero(int stage, int ranks, const std::string& more = "whole_below = 0\n") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\n{}", ranks, stage, more);
}
inline std::string with_expert(int ranks) {
  return fmt::format("[plugins.expert]\nsize = {}\n", ranks);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

using Tensors = std::map<std::string, std::vector<float>>;

inline void expect_same_tensors(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, values] : a) {
    EXPECT_TRUE(same_bits(values, b.at(name))) << what << " " << name;
  }
}

// Gradients, weights, optimizer state and losses, in every bit; the norm is a sum of sums by shard, so it may round
// otherwise, in fp64.
inline void expect_same_bits(const Snapshot& a, const Snapshot& b, const std::string& what) {
  ASSERT_EQ(a.reports.size(), b.reports.size());
  for (std::size_t step = 0; step < a.reports.size(); ++step) {
    EXPECT_EQ(a.reports[step].loss, b.reports[step].loss) << what;
    EXPECT_NEAR(a.reports[step].grad_norm / b.reports[step].grad_norm, 1, 1e-14) << what;
    expect_same_tensors(a.gradients[step], b.gradients[step], what + ": gradient of");
  }
  expect_same_tensors(a.state, b.state, what + ":");
  expect_same_tensors(a.weights_in_use, b.weights_in_use, what + ": weight in use");
  EXPECT_EQ(a.replica_differences, b.replica_differences) << what;
}

}  // namespace orthant::zero_test
