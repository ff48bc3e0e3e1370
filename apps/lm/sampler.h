// Sampler: the next token by a model's logits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace orthant {

// Applied in this order, each to what the one before it has left; then a token is drawn by what remains, renormalised.
struct Sampling {
  double temperature = 1;  // logits are divided by it; 0: the greatest logit, ties to the lower id
  std::int64_t top_k = 0;  // the likeliest so many; 0: all
  double top_p = 1;        // the fewest likeliest tokens that together have this probability (Holtzman et al., 2020)
  double min_p = 0;        // tokens with at least this share of the likeliest one's probability
  std::uint64_t seed = 1;
  // Before all of these: logit_rules.h.
  double presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  std::map<std::int32_t, float> bias = {};  // by token
};

// The first member that is out of its bounds, and "is -1: expected ..."; nullopt: none is.
struct SamplingFault {
  const char* member;
  std::string words;
};
std::optional<SamplingFault> sampling_fault(const Sampling& sampling);
// Errors: ConfigError for a fault.
void check_sampling(const Sampling& sampling);

// Thread safety: none; it keeps memory for the next call.
class Sampler {
 public:
  // The token at `position` of the answer number `answer`: a function of these arguments alone, so that it depends
  // neither on what else is generated at the same time nor on how often somebody asks.
  // REQUIRES: `how` has no fault. Errors: Error where no logit is finite, or
  // one is NaN.
  std::int32_t draw(std::span<const float> logits, const Sampling& how, std::uint64_t answer, std::int64_t position);

 private:
  struct Candidate {
    std::int32_t token;
    double weight;  // its probability, times a factor that all have
  };
  template <class Wanted>
  void take_likeliest(Wanted&& wanted);
  std::vector<Candidate> candidates_;
};

}  // namespace orthant
