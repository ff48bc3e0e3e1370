// Validator: passes forward over the held-out sequences, and over those of each validation set.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/train/batch_feed.h"
#include "core/train/executor.h"
#include "core/train/step_totals.h"
#include "core/train/validation_routing.h"

namespace orthant {

// Losses in nats per token, or per pair of answers.
struct Validation {
  double loss = 0;
  std::vector<std::pair<std::string, double>> sets;  // by name, in the source's order
  std::vector<ValidatedRouting> routing;
  std::map<std::string, double> figures;  // as StepReport's, over all that `loss` is of
};

class Validator {
 public:
  struct Parts {
    Plan& plan;
    Stream& stream;
    const Objectives& objectives;
    Group& ranks;  // that train one model
    BatchFeed& feed;
    Model& model;
    Executor& executor;
    StepTotals& totals;
    Teacher* teacher;  // or null
  };
  // All references outlive it.
  explicit Validator(const Parts& parts);

  // Mean loss over the held-out sequences, in nats per token; where none are, over those of all the source's sets. Each
  // rank that splits the batch takes its part; each independent worker measures its own weights on all of them.
  double loss();
  // The same, with the loss of each set, and what all that was measured tells of routing, layer by layer; nothing of
  // that where run.routing_metrics does not want it.
  Validation sets();

 private:
  struct Measured {
    std::vector<double> sums;          // StepTotals::of_objectives, over all ranks
    std::vector<std::int64_t> counts;  // as in StepLoad
    void add(const Measured& other);
  };
  Validation measure_all(ValidationRouting* routing);
  Measured measure(const HeldOut& set, int first_pass, ValidationRouting* routing);
  std::int64_t passes_over(const HeldOut& set) const;

  Plan& plan_;
  Stream& stream_;
  const Objectives& objectives_;
  Group& ranks_;
  BatchFeed& feed_;
  Model& model_;
  Executor& executor_;
  StepTotals& totals_;
  Teacher* teacher_;
  std::optional<ValidationRouting> validated_;  // once it was asked for
};

}  // namespace orthant
