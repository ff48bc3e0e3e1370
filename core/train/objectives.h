// The objectives of a model in the step: where their sums and counts lie, and what they say of them together.
#pragma once

#include <orthant/objective.h>

#include <span>
#include <vector>

#include "core/layers/layer.h"

namespace orthant {

class Objectives {
 public:
  explicit Objectives(const Settings& settings);

  std::int64_t sums() const { return sums_; }
  std::size_t counts() const { return counts_; }
  // Their places in sums f64 [sums()].
  std::vector<ObjectiveStep> in(const Tensor& sums) const;
  // counts: of the global batch.
  void set_counts(std::vector<ObjectiveStep>& of, std::span<const std::int64_t> counts) const;

  // Adds what this rank has of a micro-batch to counts [counts()], and its tokens that are not padding to valid, of
  // each token space.
  void count(const HostBatch& whole, const Plan& plan, std::span<std::int64_t> valid,
             std::span<std::int64_t> counts) const;
  // The head's loss, and all figures.
  ObjectiveReport report(std::span<const double> sums, std::span<const std::int64_t> counts, bool training) const;

  const ReferenceModel& reference() const { return reference_; }  // the head's
  bool over_sequences() const { return over_sequences_; }         // the head's

 private:
  struct Place {
    const Objective* objective;
    std::string name;
    std::int64_t first_sum, sums;
    std::size_t first_count, counts;
  };
  const Settings& settings_;
  std::vector<Place> places_;
  std::int64_t sums_ = 0;
  std::size_t counts_ = 0;
  ReferenceModel reference_;
  bool over_sequences_;
};

}  // namespace orthant
