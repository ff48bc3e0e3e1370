#include "apps/lm/logit_rules.h"

#include <orthant/error.h>

#include <algorithm>
#include <limits>

namespace orthant {

LogitRules::LogitRules(const Sampling& sampling, std::span<const std::int32_t> prompt)
    : sampling_(sampling),
      repeats_(sampling.repetition_penalty != 1),
      counts_(sampling.frequency_penalty != 0 || sampling.presence_penalty != 0) {
  if (repeats_) {
    met_.insert(prompt.begin(), prompt.end());
  }
}

void LogitRules::add(std::int32_t token) {
  if (repeats_) {
    met_.insert(token);
  }
  if (counts_) {
    ++made_[token];
  }
}

bool LogitRules::neutral(std::span<const std::int32_t> ends) const {
  return ends.empty() && sampling_.bias.empty() && met_.empty() && made_.empty();
}

void LogitRules::apply(std::span<float> logits, std::span<const std::int32_t> ends) const {
  const auto at = [&](std::int32_t token) -> float& { return logits[static_cast<std::size_t>(token)]; };
  for (const std::int32_t token : ends) {
    at(token) = -std::numeric_limits<float>::infinity();
  }
  for (const auto& [token, bias] : sampling_.bias) {
    at(token) += bias;
  }
  const float penalty = static_cast<float>(sampling_.repetition_penalty);
  for (const std::int32_t token : met_) {
    at(token) = at(token) > 0 ? at(token) / penalty : at(token) * penalty;
  }
  const float often = static_cast<float>(sampling_.frequency_penalty);
  const float there = static_cast<float>(sampling_.presence_penalty);
  for (const auto& [token, times] : made_) {
    at(token) -= often * static_cast<float>(times);
    at(token) -= there;
  }
  const float none = -std::numeric_limits<float>::infinity();
  if (!ends.empty() && std::none_of(logits.begin(), logits.end(), [&](float logit) { return logit > none; })) {
    throw ConfigError(
        "every token ends the answer, and 'min_tokens' forbids that: ask for fewer stop tokens, or fewer tokens");
  }
}

}  // namespace orthant
