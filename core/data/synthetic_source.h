// SyntheticSource: an order-1 Markov chain, so that the best possible loss is known.
#pragma once

#include <orthant/random.h>
#include <orthant/settings.h>
#include <orthant/source.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace orthant {

// Each of vocab_size states has up to four successors, with probabilities drawn from the seed. Sequences begin in the
// chain's stationary distribution, so that every position has the same entropy.
class SyntheticSource final : public Sequences {
 public:
  explicit SyntheticSource(const Settings& settings);

  std::string name() const override { return "the synthetic source"; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  Sequence training(std::int64_t i) const override;
  std::int64_t validation_sequences() const override { return validation_sequences_; }
  Sequence validation(std::int64_t i) const override;

  double entropy() const { return stationary().entropy; }  // nats per token

 private:
  struct Stationary {
    std::vector<double> cumulative;  // [vocabulary], what a sequence begins with
    double entropy = 0;
  };
  // Found when it is first asked for: of many tokens it takes a second, and who only wants to know sizes never asks.
  const Stationary& stationary() const;
  Stationary find_stationary() const;
  Sequence generate(const RandomKey& key, std::int64_t number) const;

  std::int64_t vocabulary_;
  std::uint64_t seed_;
  std::int64_t batch_sequences_;
  std::int64_t positions_;
  std::int64_t validation_sequences_;
  std::size_t branches_;
  std::vector<std::int32_t> successor_;  // [vocabulary, branches]
  std::vector<double> probability_;      // [vocabulary, branches]
  mutable std::once_flag once_;
  mutable Stationary stationary_;  // written once
};

}  // namespace orthant
