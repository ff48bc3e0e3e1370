#include "apps/lm/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <orthant/error.h>
#include <orthant/random.h>

namespace orthant {
namespace {

// In [0, 1), 53 bits.
double uniform_at(const Sampling& how, std::uint64_t answer, std::int64_t position) {
  const RandomKey key{how.seed, Purpose::sampling, static_cast<std::uint32_t>(answer),
                      static_cast<std::uint32_t>(answer >> 32)};
  const Philox4 bits = philox(key, static_cast<std::uint64_t>(position));
  const std::uint64_t wide = (std::uint64_t{bits.v[0]} << 32 | bits.v[1]) >> 11;
  return static_cast<double>(wide) * 0x1p-53;
}

}  // namespace

std::optional<SamplingFault> sampling_fault(const Sampling& s) {
  const auto fault = [](const char* member, auto found, const char* expected) {
    return SamplingFault{member, fmt::format("is {}: expected {}", found, expected)};
  };
  if (!(s.temperature >= 0 && s.temperature <= 1e6)) {
    return fault("temperature", s.temperature, "a number from 0 to 1e6");
  }
  if (s.top_k < 0) {
    return fault("top_k", s.top_k, "a whole number, 0 (all) or more");
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) {
    return fault("top_p", s.top_p, "a number above 0, to 1 (a temperature of 0 takes the likeliest token)");
  }
  if (!(s.min_p >= 0 && s.min_p <= 1)) {
    return fault("min_p", s.min_p, "a number from 0 to 1");
  }
  if (!(std::abs(s.presence_penalty) <= 2)) {
    return fault("presence_penalty", s.presence_penalty, "a number from -2 to 2");
  }
  if (!(std::abs(s.frequency_penalty) <= 2)) {
    return fault("frequency_penalty", s.frequency_penalty, "a number from -2 to 2");
  }
  if (!(s.repetition_penalty >= 0.001 && s.repetition_penalty <= 100)) {
    return fault("repetition_penalty", s.repetition_penalty, "a number from 0.001 to 100 (1 changes nothing)");
  }
  return std::nullopt;
}

void check_sampling(const Sampling& sampling) {
  if (const auto fault = sampling_fault(sampling)) {
    throw ConfigError(fmt::format("{} {}", fault->member, fault->words));
  }
}

// The likeliest candidates, in order, while wanted(how many there are already, their weight) says so; at least one.
template <class Wanted>
void Sampler::take_likeliest(Wanted&& wanted) {
  const auto less = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), less);
  auto end = candidates_.end();
  double weight = 0;
  std::size_t taken = 0;
  while (end != candidates_.begin() && (taken == 0 || wanted(taken, weight))) {
    std::pop_heap(candidates_.begin(), end--, less);
    weight += end->weight;
    ++taken;
  }
  candidates_.erase(candidates_.begin(), end);
  std::reverse(candidates_.begin(), candidates_.end());
}

std::int32_t Sampler::draw(std::span<const float> logits, const Sampling& how, std::uint64_t answer,
                           std::int64_t position) {
  require(!logits.empty(), "there are no logits to draw from");
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    require(!std::isnan(logits[i]), "the logit of token {} is not a number: the model's weights have diverged", i);
    best = logits[i] > logits[best] ? i : best;
  }
  const double top = static_cast<double>(logits[best]);
  require(std::isfinite(top), "the greatest logit is {}: the model's weights have diverged", top);
  if (how.temperature == 0) {
    return static_cast<std::int32_t>(best);
  }
  candidates_.clear();
  double all = 0;  // the weight of what the next rule sees
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (const double weight = std::exp((static_cast<double>(logits[i]) - top) / how.temperature); weight > 0) {
      candidates_.push_back({static_cast<std::int32_t>(i), weight});
      all += weight;
    }
  }
  const std::size_t most = how.top_k > 0 ? static_cast<std::size_t>(how.top_k) : candidates_.size();
  if (most < candidates_.size()) {
    take_likeliest([&](std::size_t taken, double) { return taken < most; });
    all = 0;
    for (const Candidate& c : candidates_) {
      all += c.weight;
    }
  }
  if (how.top_p < 1) {
    take_likeliest([&](std::size_t, double weight) { return weight < how.top_p * all; });
  }
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < how.min_p; });  // the likeliest one's is 1
  double total = 0;
  for (const Candidate& c : candidates_) {
    total += c.weight;
  }
  double left = uniform_at(how, answer, position) * total;
  for (const Candidate& c : candidates_) {
    left -= c.weight;
    if (left < 0) {
      return c.token;
    }
  }
  return candidates_.back().token;
}

}  // namespace orthant
