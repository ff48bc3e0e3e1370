// What is asked of a pair, against its definition in fp64 as the papers write it, and slopes against finite
// differences.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/objectives/preference_rule.h"

namespace orthant::rule_test {
namespace {

struct Pair {
  AnswerSums chosen, rejected;
};

// Equation 7 of "Direct Preference Optimization", with the labels of a share of the pairs turned round.
double dpo(const Pair& p, double beta, double wrong) {
  const double pi = std::log(std::exp(p.chosen.model) / std::exp(p.chosen.reference));
  const double other = std::log(std::exp(p.rejected.model) / std::exp(p.rejected.reference));
  const double right = 1 / (1 + std::exp(-(beta * pi - beta * other)));
  return -(1 - wrong) * std::log(right) - wrong * std::log(1 - right);
}

// Equation 17 of Azar et al., of means over the tokens of an answer.
double ipo(const Pair& p, double beta) {
  const double chosen = p.chosen.model / p.chosen.tokens - p.chosen.reference / p.chosen.tokens;
  const double rejected = p.rejected.model / p.rejected.tokens - p.rejected.reference / p.rejected.tokens;
  return std::pow(chosen - rejected - 1 / (2 * beta), 2);
}

PreferenceKeys settings(PreferenceLoss loss, double beta, double wrong) {
  return {.loss = loss, .reference = "", .beta = beta, .label_smoothing = wrong, .nll_weight = 0};
}

const Pair pairs[] = {
    {{-7.25, -8.5, 3}, {-12.5, -9.75, 5}}, {{-20.0, -12.0, 11}, {-3.0, -6.0, 2}}, {{-1.5, -1.5, 1}, {-2.5, -2.5, 4}}};

void expect_right(const Pair& pair, const PreferenceKeys& how, const std::function<double(const Pair&)>& loss) {
  const JudgedPair judged = judge(pair.chosen, pair.rejected, how);
  EXPECT_NEAR(judged.loss, loss(pair), 1e-12);
  const double h = 1e-6;
  for (const bool chosen : {true, false}) {
    Pair above = pair, below = pair;
    (chosen ? above.chosen : above.rejected).model += h;
    (chosen ? below.chosen : below.rejected).model -= h;
    const JudgedAnswer& answer = chosen ? judged.chosen : judged.rejected;
    EXPECT_NEAR(answer.slope, (loss(above) - loss(below)) / (2 * h), 1e-8) << chosen;
    const AnswerSums& sums = chosen ? pair.chosen : pair.rejected;
    const double tokens = how.loss == PreferenceLoss::ipo ? sums.tokens : 1;
    EXPECT_DOUBLE_EQ(answer.logp, sums.model / tokens);
    EXPECT_NEAR(answer.reward, how.beta * (sums.model - sums.reference) / tokens, 1e-14);
  }
}

TEST(PreferenceRule, IsItsDefinitionAndItsSlopesThoseOfFiniteDifferences) {
  for (const Pair& pair : pairs) {
    for (const double beta : {0.1, 0.5, 2.0}) {
      for (const double wrong : {0.0, 0.1, 0.4}) {
        SCOPED_TRACE(testing::Message() << "beta " << beta << ", label_smoothing " << wrong);
        expect_right(pair, settings(PreferenceLoss::sigmoid, beta, wrong),
                     [&](const Pair& p) { return dpo(p, beta, wrong); });
      }
      SCOPED_TRACE(testing::Message() << "ipo, beta " << beta);
      expect_right(pair, settings(PreferenceLoss::ipo, beta, 0), [&](const Pair& p) { return ipo(p, beta); });
    }
  }
}

TEST(PreferenceRule, AModelThatIsItsReferencePrefersNothing) {
  const JudgedPair pair = judge({-5, -5, 3}, {-70, -70, 9}, settings(PreferenceLoss::sigmoid, 0.1, 0));
  EXPECT_DOUBLE_EQ(pair.loss, std::log(2.0));
  EXPECT_EQ(pair.chosen.reward, 0);
  EXPECT_EQ(pair.rejected.reward, 0);
  EXPECT_DOUBLE_EQ(pair.chosen.slope, -0.05);
  EXPECT_DOUBLE_EQ(pair.rejected.slope, 0.05);
}

// Log-probabilities of long answers: no exponential overflows.
TEST(PreferenceRule, LargeDifferencesAreFinite) {
  const PreferenceKeys how = settings(PreferenceLoss::sigmoid, 1, 0);
  const JudgedPair sure = judge({-10, -9000, 900}, {-9000, -10, 900}, how);
  EXPECT_EQ(sure.loss, 0);
  EXPECT_EQ(sure.chosen.slope, 0);
  const JudgedPair wrong = judge({-9000, -10, 900}, {-10, -9000, 900}, how);
  EXPECT_DOUBLE_EQ(wrong.loss, 2 * 8990.0);
  EXPECT_DOUBLE_EQ(wrong.chosen.slope, -1);
  const JudgedPair broken = judge({-INFINITY, -10, 9}, {-10, -10, 9}, how);
  EXPECT_FALSE(std::isfinite(broken.loss)) << "the step is refused";
}

}  // namespace
}  // namespace orthant::rule_test
