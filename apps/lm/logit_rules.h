// LogitRules: what an answer's request and its tokens so far make of the logits of the next one, before a token is
// drawn. In this order, in fp32:
//
//   tokens that may not end the answer yet (min_tokens)     -infinity
//   logit_bias                                              is added
//   repetition_penalty p of tokens of prompt and answer     logit > 0 ? logit / p : logit * p (Keskar et al., 2019)
//   frequency_penalty of tokens of the answer               - penalty * how often it has been there
//   presence_penalty of tokens of the answer                - penalty
//
// As vLLM defines and orders them; the repetition penalty is transformers' too. Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "apps/lm/sampler.h"

namespace orthant {

class LogitRules {
 public:
  LogitRules(const Sampling& sampling, std::span<const std::int32_t> prompt);

  // One more token of the answer.
  void add(std::int32_t token);
  // Whether apply() would change nothing. ends: as apply's.
  bool neutral(std::span<const std::int32_t> ends) const;
  // ends: tokens that may not come yet. Errors: Error where no token is left.
  void apply(std::span<float> logits, std::span<const std::int32_t> ends) const;

 private:
  const Sampling& sampling_;
  const bool repeats_, counts_;
  std::unordered_set<std::int32_t> met_;                 // of prompt and answer, where that matters
  std::unordered_map<std::int32_t, std::int64_t> made_;  // of the answer, how often
};

}  // namespace orthant
