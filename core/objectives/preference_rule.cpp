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

const Keys<PreferenceKeys>& PreferenceKeys::keys() {
  static const auto all =
      Keys<PreferenceKeys>()
          .choice("loss", &PreferenceKeys::loss, {"sigmoid", "ipo"},
                  "With data.source = \"pairs\", of h = how much more the chosen answer is preferred than by the "
                  "reference: sigmoid, -log sigmoid(beta h) (DPO); ipo, (h - 1 / (2 beta))^2 of log-probabilities per "
                  "token.")
          .in("preference")
          .add("reference", &PreferenceKeys::reference,
               "A run's folder (its newest checkpoint) or a checkpoint's: the model whose preferences count as none; a "
               "relative path is relative to the file that names it. Empty: that of train.from.")
          .in("preference")
          .file()
          .add("beta", &PreferenceKeys::beta, "How strongly the model is kept near the reference; above 0.",
               between(0, 1e6))
          .in("preference")
          .add("label_smoothing", &PreferenceKeys::label_smoothing,
               "sigmoid: the share of pairs that are taken to be the wrong way round; below 0.5.", between(0, 0.5))
          .in("preference")
          .add("nll_weight", &PreferenceKeys::nll_weight,
               "Of the chosen answers' cross entropy per token, which is added to the loss (TRL's rpo_alpha); 0: none.",
               between(0, 1e6))
          .in("preference");
  return all;
}

JudgedPair judge(const AnswerSums& chosen, const AnswerSums& rejected, const PreferenceKeys& how) {
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
