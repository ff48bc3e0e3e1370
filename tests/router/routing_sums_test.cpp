// routing_sums against its definition in fp64, on every device.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/router/problems.h"

namespace orthant::test::routing_sums_test {
namespace {

double entropy(const Values& p) {
  double sum = 0;
  for (const double v : p) {
    sum -= v > 0 ? v * std::log(v) : 0;
  }
  return sum;
}

// What a token adds to the last two sums. The experts that it chose are marked by `chosen`.
void add_margin(Values& sums, const Values& x, const std::vector<bool>& chosen) {
  double least = std::numeric_limits<double>::infinity(), other = -least;
  for (std::size_t e = 0; e < x.size(); ++e) {
    (chosen[e] ? least : other) = chosen[e] ? std::min(least, x[e]) : std::max(other, x[e]);
  }
  if (std::isfinite(least) && std::isfinite(other)) {
    sums[1] += least - other;
    sums[2] += 1;
  }
}

Values definition(const Values& logits, const Values& expert, const Problem& q) {
  const std::int64_t experts = q.config.experts, k_count = q.config.top_k;
  Values sums(3, 0.0);
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    if (q.valid[t] == 0) {
      continue;
    }
    const Values x = oracle::row_of(logits, t, experts);
    sums[0] += entropy(oracle::shares(x, q.config));
    if (q.kind == Kind::expert_choice) {
      continue;
    }
    std::vector<bool> chosen(static_cast<std::size_t>(experts), false);
    for (const double e : oracle::row_of(expert, t, k_count)) {
      if (e >= 0) {
        chosen[static_cast<std::size_t>(e)] = true;
      }
    }
    if (q.kind == Kind::gshard) {  // the second in rank, also where chance left it out
      std::size_t best = std::max_element(x.begin(), x.end()) - x.begin();
      Values rest = x;
      rest[best] = -std::numeric_limits<double>::infinity();
      chosen.assign(chosen.size(), false);
      chosen[best] = chosen[std::max_element(rest.begin(), rest.end()) - rest.begin()] = true;
    }
    add_margin(sums, x, chosen);
  }
  return sums;
}

void expect_the_definition(const std::vector<Problem>& all) {
  for (const Problem& q : all) {
    on_every_device([&](OpContext& c) {
      const Input logits = c.normal(DType::f32, {q.tokens, q.config.experts}, 2.0);
      const Routed r = run_gate(c, logits, q);
      Values want = definition(logits.values, c.values_of(r.expert), q);
      const Tensor sums = c.input(DType::f64, {3}, {1, 2, 3}).tensor;
      c.stream().routing_sums(sums, r.expert, r.lse, r.logits, r.valid, q.config);
      for (std::size_t i = 0; i < 3; ++i) {
        want[i] += static_cast<double>(i + 1);
      }
      c.expect("sums", sums, want, 2e-6);
    });
  }
}

TEST(RoutingSums, AreTheDefinition) {
  expect_the_definition(problems());
}
TEST(RoutingSums, AreTheDefinitionAtBlockBoundaries) {
  expect_the_definition(joined(block_boundaries(), long_rows()));
}

// A gate that does not go by logits has margins below zero, and one that wants fewer experts has them all the same.
TEST(RoutingSums, TakeChoicesAsTheyAre) {
  const Problem q = problem(Kind::topk, 4, 2, 1, 3);
  on_every_device([&](OpContext& c) {
    const Input logits = c.input(DType::f32, {3, 4}, {0, 1, 2, 3, 0, 1, 2, 3, 5, 5, 5, 5});
    const Tensor expert = c.input(DType::i32, {3, 2}, {0, 1, 2, -1, -1, -1}).tensor;
    const Tensor lse = c.input(DType::f32, {3}, {3.4401897, 3.4401897, 6.3862944}).tensor;
    const Tensor valid = c.input(DType::u8, {3}, {1, 1, 1}).tensor, sums = c.constant(DType::f64, {3}, 0).tensor;
    c.stream().routing_sums(sums, expert, lse, logits.tensor, valid, q.config);
    const double of_row = entropy(oracle::softmax({0, 1, 2, 3}));
    c.expect("sums", sums, {2 * of_row + std::log(4.0), (0 - 3) + (2 - 3), 2}, 2e-6);
  });
}

}  // namespace
}  // namespace orthant::test::routing_sums_test
