// verify: a layout against one rank, on the same batches. Plugins that change the mathematics on purpose (Plugin's
// Mathematics) are in the reference too.
//
// Both run some steps as threads of this process. Compared after each step: loss, balance and z loss, gradient norm,
// routing counters, every gathered gradient; after the last: weights and optimizer state, and that replicas are
// bit-identical.
//
// A tensor's difference is ||a - b|| / max(||b||, floor): the norm of the reference, but at least a twentieth of what
// it would be if the whole gradient (all weights, all moments) were spread evenly over the elements. See
// docs/internals/invariants.md.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/train/trainer.h"

namespace orthant {

// Everything a layout computed, gathered to global tensors on the host.
struct Snapshot {
  std::vector<StepReport> reports;                                   // one a step
  std::vector<std::map<std::string, std::vector<float>>> gradients;  // one a step, by parameter
  std::map<std::string, std::vector<float>> state;                   // after the last: weight/NAME, moment1/NAME, ...
  std::map<std::string, std::vector<float>> weights_in_use;          // after the last: as layers read them
  std::vector<std::string> replica_differences;                      // parameters whose replicas differ in any bit
  int world_size = 1;
};

// How a snapshot's steps are taken. apart: gradients, which are compared, then the update. together: as a run does it,
// without a look at the gradients.
enum class Halves { apart, together };

// Trains `steps` steps of `config` on as many threads as its layout needs. Errors: as the training's.
Snapshot take_snapshot(const Config& config, int steps, Halves halves = Halves::apart);

// What first differs in any bit ("gradient of NAME at step 1"); empty: nothing does.
std::string first_difference_in_bits(const Snapshot& a, const Snapshot& b);

// The same experiment with every plugin absent, but those that say that they change the mathematics (of one rank), and
// those named in `keep` (as they are).
Config one_rank(Config config, const std::vector<std::string>& keep = {});

struct Comparison {
  std::string quantity;  // "loss", "gradient" (of the first step), "later gradient", "weight", ...
  std::string where;     // "step 1", "step 1 model.layers.0...": of the largest difference
  double difference = 0;
  double tolerance = 0;
  int compared = 0;
  bool ok() const { return difference <= tolerance; }  // false for NaN
};

struct VerifyReport {
  std::vector<Comparison> rows;  // in the order in which a training step meets the quantities
  std::string first_difference;  // empty: none
  std::string axes;              // the fewest plugins that show it: "data x expert"
  int first_step = 0;            // of the first difference, from 1
  bool ok() const { return first_difference.empty(); }
};

// A batch that grows within `steps` steps, at each one, to the last of its sizes: what verify takes in their place.
// REQUIRES: steps >= 1.
BatchSettings growth_within(BatchSettings batch, int steps);

// The difference of two snapshots of one experiment.
VerifyReport compare(const Snapshot& layout, const Snapshot& reference, const Settings& settings);

// Both, and on a difference a search for the fewest plugins that show it. optimizer.eps is raised where it would turn
// the rounding of gradients that are almost zero into differences of weights. A batch that grows does so by
// growth_within. A layout whose training stops is different. `keep`: plugins that the reference has too. Errors:
// ConfigError for one that the configuration has not.
VerifyReport verify(const Config& config, int steps, const std::vector<std::string>& keep = {});

// What to try where the report may be of no fault: in bf16, layouts that add up parts of a sum round each part, and
// from the second step on weights differ by rounding in any layout: a choice of experts that is nearly a tie falls the
// other way. In fp32 that is rare, and another seed has no such choice. Of a plugin whose results depend on ranks: what
// the reference must keep, or, where that is all of the layout, whether the layout without it is equal to one rank,
// which is tried. Of a balance loss over micro-batches (moe.balance_over = "batch"): that layouts have others. Empty:
// nothing to add.
std::string advice_on(const VerifyReport& report, const Config& config, const std::vector<std::string>& keep = {});

}  // namespace orthant
