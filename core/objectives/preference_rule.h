// What is asked of the log-probabilities of two answers to a prompt, of which one is preferred: numbers in, numbers
// out, in fp64.
//
// An answer's log-probability l is the sum over its tokens of log p(token); m is the same of the reference model.
//   sigmoid  h = (l_chosen - m_chosen) - (l_rejected - m_rejected)
//            -(1 - label_smoothing) log sigmoid(beta h) - label_smoothing log sigmoid(-beta h)
//   ipo      the same h, but of l and m divided by the answer's number of tokens: (h - 1 / (2 beta))^2
// Sources: Rafailov et al., "Direct Preference Optimization" (2023), equation 7; Mitchell, "A note on DPO with noisy
// preferences" (2023); Azar et al., "A General Theoretical Paradigm to Understand Learning from Human Preferences"
// (2023), equation 17, by means over tokens as TRL has it.
#pragma once

#include <string>

#include <orthant/keys.h>

namespace orthant {

enum class PreferenceLoss { sigmoid, ipo };

struct PreferenceKeys {
  PreferenceLoss loss = PreferenceLoss::sigmoid;
  std::string reference;       // a run's or a checkpoint's folder; absolute; empty: that of train.from
  double beta = 0.1;           // above 0
  double label_smoothing = 0;  // sigmoid: the share of pairs that are taken to be the wrong way round; below 0.5
  double nll_weight = 0;       // of the cross entropy of the chosen answers, which is added
  static const Keys<PreferenceKeys>& keys();
};

struct AnswerSums {
  double model = 0, reference = 0;  // sums of log p over its tokens
  double tokens = 0;
};

struct JudgedAnswer {
  double logp = 0;    // ipo: per token
  double reward = 0;  // beta (l - m)
  double slope = 0;   // the derivative of the pair's loss by the log-probability of each of its tokens
};

struct JudgedPair {
  double loss = 0;
  JudgedAnswer chosen, rejected;
};

// REQUIRES: both have tokens.
JudgedPair judge(const AnswerSums& chosen, const AnswerSums& rejected, const PreferenceKeys& how);

}  // namespace orthant
