// Codes of gradients against their definitions, written out in fp64.
#include "plugins/compress/codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace orthant::keepers_test::codes_test {
namespace {

using compress::add_decoded;
using compress::Code;
using compress::encode;
using compress::Method;
using Values = std::vector<float>;

Values some(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.1f, 2.0f);
  Values x(n);
  std::generate(x.begin(), x.end(), [&] { return normal(random); });
  return x;
}

Values decoded(const Code& code, const Values& x, Values& left) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(code.bytes(static_cast<std::int64_t>(x.size()))), 0xAB);
  encode(code, bytes, x, left);
  Values out(x.size(), 0.0f);
  add_decoded(code, out, bytes);
  return out;
}

TEST(Codes, SignsCarryTheMeanSize) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{1001}}) {
    const Values x = some(n, 1), before = some(n, 2);
    Values left = before;
    const Values sent = decoded({}, x, left);
    double mean = 0;
    for (std::size_t i = 0; i < n; ++i) {
      mean += std::abs(static_cast<double>(x[i]) + static_cast<double>(before[i])) / static_cast<double>(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double whole = static_cast<double>(x[i]) + static_cast<double>(before[i]);
      EXPECT_NEAR(sent[i], whole >= 0 ? mean : -mean, 1e-6 * mean);
      EXPECT_NEAR(sent[i] + left[i], whole, 1e-5) << "nothing is lost";
    }
  }
  EXPECT_EQ(Code{}.bytes(1), 5);
  EXPECT_EQ(Code{}.bytes(8), 5);
  EXPECT_EQ(Code{}.bytes(9), 6);
}

TEST(Codes, Int8IsTheNearestStepOfItsBlock) {
  const Code code{.method = Method::int8, .block = 100};
  EXPECT_EQ(code.bytes(100), 104);
  EXPECT_EQ(code.bytes(101), 109);
  const Values x = some(250, 3), before = some(250, 4);
  Values left = before;
  const Values sent = decoded(code, x, left);
  for (std::size_t begin = 0; begin < x.size(); begin += 100) {
    double largest = 0;
    const std::size_t end = std::min(begin + 100, x.size());
    for (std::size_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(x[i]) + static_cast<double>(before[i])));
    }
    for (std::size_t i = begin; i < end; ++i) {
      const double whole = static_cast<double>(x[i]) + static_cast<double>(before[i]), step = largest / 127;
      EXPECT_NEAR(sent[i], std::nearbyint(whole / step) * step,
                  1e-4 * step + (std::abs(std::remainder(whole / step, 1.0)) > 0.499 ? step : 0));
      EXPECT_LE(std::abs(left[i]), 0.5001 * step);
      EXPECT_NEAR(sent[i] + left[i], whole, 1e-5);
    }
  }
}

// An expert that no token chose has a gradient of zeros: nothing is sent for it, and nothing is left.
TEST(Codes, ZerosAreZeros) {
  for (const Method method : {Method::signs, Method::int8}) {
    Values left(300, 0.0f);
    EXPECT_EQ(decoded({.method = method}, Values(300, 0.0f), left), Values(300, 0.0f));
    EXPECT_EQ(left, Values(300, 0.0f));
  }
}

TEST(Codes, WhatIsNotFiniteIsSeenAndLeavesNothing) {
  for (const Method method : {Method::signs, Method::int8}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Values x = some(300, 5);
      x[299] = bad;
      const Values before = some(300, 6);
      Values left = before;
      const Values sent = decoded({.method = method}, x, left);
      EXPECT_TRUE(std::all_of(sent.begin(), sent.end(), [](float value) { return std::isnan(value); }));
      EXPECT_EQ(left, before);
    }
  }
}

}  // namespace
}  // namespace orthant::keepers_test::codes_test
