// StepReports: the numbers of each step on their way from the device to the host, and the report that is made of them.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <orthant/hook.h>

#include <cstddef>
#include <deque>

#include "core/train/batch_feed.h"
#include "core/train/readback.h"
#include "core/train/routing_meter.h"
#include "core/train/step_totals.h"

namespace orthant {

class StepReports {
 public:
  struct Done {
    StepLoad load;
    StepReport report;
  };

  // All references outlive it.
  StepReports(const Plan& plan, const Objectives& objectives, const RoutingMeter& routing)
      : plan_(plan), objectives_(objectives), routing_(routing) {}

  // Behind a step's sums: asks for what its report needs. sum_squares: f64 [1], of its gradient. Returns at once where
  // the device is asynchronous.
  void begin(StepLoad load, double lr, const StepTotals& totals, const Tensor& sum_squares, Stream& s);
  std::size_t under_way() const { return begun_.size(); }
  std::int64_t oldest() const { return begun_.front().load.step; }                     // REQUIRES: one is under way
  bool is_there() const { return !begun_.empty() && begun_.front().numbers.ready(); }  // the oldest
  // Waits for the oldest one. REQUIRES: one is under way. Errors: what an objective refuses.
  Done finish(Stream& s);
  void forget() { begun_.clear(); }

 private:
  struct Begun {
    StepLoad load;
    double lr;
    Readback numbers;  // StepTotals::all, sum_squares, StepTotals::choices, RoutingMeter::numbers
  };
  // valid: StepLoad::valid.
  void add_counters(StepReport& report, std::span<const std::int64_t> choices,
                    std::span<const std::int64_t> valid) const;

  const Plan& plan_;
  const Objectives& objectives_;
  const RoutingMeter& routing_;
  std::deque<Begun> begun_;
};

// What independent workers report together: means of losses and norms, the sum of tokens; counters stay those of this
// rank's worker. Else `report` as it is. Collective over the world.
StepReport over_workers(StepReport report, const Plan& plan, Group& world, Stream& stream);

}  // namespace orthant
