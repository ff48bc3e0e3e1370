// Drawing tokens: the rules by their definition, frequencies against probabilities.
#include "apps/lm/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include <orthant/error.h>

namespace orthant::sampler_test {
namespace {

// Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 at ids 3, 0, 4, 1, 2.
std::vector<float> logits() {
  std::vector<float> of(5);
  const double p[] = {0.3, 0.1, 0.05, 0.4, 0.15};
  for (std::size_t i = 0; i < 5; ++i) {
    of[i] = static_cast<float>(std::log(p[i]) + 7);
  }
  return of;
}

std::map<std::int32_t, double> shares(const Sampling& how, int draws = 40000) {
  Sampler sampler;
  std::map<std::int32_t, double> found;
  const std::vector<float> from = logits();
  for (int i = 0; i < draws; ++i) {
    found[sampler.draw(from, how, static_cast<std::uint64_t>(i % 7), i)] += 1.0 / draws;
  }
  return found;
}

void expect(const std::map<std::int32_t, double>& found, const std::map<std::int32_t, double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [id, share] : wanted) {
    EXPECT_NEAR(found.at(id), share, 0.012) << id;  // five deviations
  }
}

TEST(Sampler, DrawsByProbability) {
  expect(shares({}), {{0, 0.3}, {1, 0.1}, {2, 0.05}, {3, 0.4}, {4, 0.15}});
}

TEST(Sampler, TemperatureSharpens) {
  const double sum = 0.09 + 0.01 + 0.0025 + 0.16 + 0.0225;  // squares
  expect(shares({.temperature = 0.5}),
         {{0, 0.09 / sum}, {1, 0.01 / sum}, {2, 0.0025 / sum}, {3, 0.16 / sum}, {4, 0.0225 / sum}});
}

TEST(Sampler, TemperatureZeroTakesTheGreatestAndOfEqualOnesTheFirst) {
  Sampler sampler;
  EXPECT_EQ(sampler.draw(logits(), {.temperature = 0}, 0, 0), 3);
  EXPECT_EQ(sampler.draw(std::vector<float>{1, 2, 2, 0}, {.temperature = 0}, 0, 0), 1);
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  expect(shares({.top_k = 2}), {{3, 0.4 / 0.7}, {0, 0.3 / 0.7}});
  expect(shares({.top_k = 1}), {{3, 1}});
  EXPECT_EQ(shares({.top_k = 50}).size(), 5u);
}

// The fewest that reach the probability, the one that reaches it among them.
TEST(Sampler, TopPKeepsTheFewest) {
  expect(shares({.top_p = 0.39}), {{3, 1}});
  expect(shares({.top_p = 0.41}), {{3, 0.4 / 0.7}, {0, 0.3 / 0.7}});
  expect(shares({.top_p = 0.8}), {{3, 0.4 / 0.85}, {0, 0.3 / 0.85}, {4, 0.15 / 0.85}});
}

TEST(Sampler, MinPIsAShareOfTheLikeliest) {
  expect(shares({.min_p = 0.3}), {{3, 0.4 / 0.85}, {0, 0.3 / 0.85}, {4, 0.15 / 0.85}});
}

// Behind top_k = 2 the probabilities are 4/7 and 3/7: top_p of 0.5 keeps one, where 0.5 of all would keep two.
TEST(Sampler, EachRuleSeesWhatTheOneBeforeItLeft) {
  expect(shares({.top_k = 2, .top_p = 0.5}), {{3, 1}});
  expect(shares({.top_p = 0.5}), {{3, 0.4 / 0.7}, {0, 0.3 / 0.7}});
}

TEST(Sampler, IsAFunctionOfSeedAnswerAndPosition) {
  Sampler a, b;
  int differ = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(a.draw(logits(), {}, 3, i), b.draw(logits(), {}, 3, i));
    b.draw(logits(), {.seed = 9}, 3, i);  // nothing is remembered
    differ += a.draw(logits(), {}, 3, i) != a.draw(logits(), {.seed = 2}, 3, i) ? 1 : 0;
    differ += a.draw(logits(), {}, 3, i) != a.draw(logits(), {}, 4, i) ? 1 : 0;
  }
  EXPECT_GT(differ, 80);
}

TEST(Sampler, RefusesWhatIsNoNumber) {
  Sampler sampler;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_THROW(sampler.draw(std::vector<float>{1, nan}, {}, 0, 0), Error);
  EXPECT_THROW(sampler.draw(std::vector<float>{1, inf}, {.temperature = 0}, 0, 0), Error);
  EXPECT_THROW(sampler.draw(std::vector<float>{-inf, -inf}, {}, 0, 0), Error);
  EXPECT_EQ(sampler.draw(std::vector<float>{-inf, 0}, {}, 0, 0), 1);
}

}  // namespace
}  // namespace orthant::sampler_test
