#include "core/objectives/preference_rule.h"

#include <cmath>

namespace orthant {
namespace {

// -log sigmoid(x), and sigmoid(x), without an overflow.
double minus_log_sigmoid(double x) {
  return std::log1p(std::exp(-std::abs(x))) + (x < 0 ? -x : 0);
}
double sigmoid(double x) {
  const double small = std::exp(-std::abs(x));
  return (x < 0 ? small : 1) / (1 + small);
}

}  // namespace

JudgedPair judge(const AnswerSums& chosen, const AnswerSums& rejected, const PreferenceSettings& how) {
  const bool per_token = how.loss == PreferenceLoss::ipo;
  const double of_chosen = per_token ? chosen.tokens : 1, of_rejected = per_token ? rejected.tokens : 1;
  const double more_chosen = (chosen.model - chosen.reference) / of_chosen;
  const double more_rejected = (rejected.model - rejected.reference) / of_rejected;
  const double h = more_chosen - more_rejected;
  JudgedPair pair;
  double slope = 0;  // by h
  if (how.loss == PreferenceLoss::ipo) {
    const double apart = h - 1 / (2 * how.beta);
    pair.loss = apart * apart;
    slope = 2 * apart;
  } else {
    const double x = how.beta * h, wrong = how.label_smoothing;
    pair.loss = (1 - wrong) * minus_log_sigmoid(x) + wrong * minus_log_sigmoid(-x);
    slope = how.beta * (wrong * sigmoid(x) - (1 - wrong) * sigmoid(-x));
  }
  pair.chosen = {chosen.model / of_chosen, how.beta * more_chosen, slope / of_chosen};
  pair.rejected = {rejected.model / of_rejected, how.beta * more_rejected, -slope / of_rejected};
  return pair;
}

}  // namespace orthant
