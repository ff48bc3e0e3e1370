// RoutingMeter: what a logged step tells of its routers (orthant/hook.h, LayerRouting), beside the counters that every
// step has.
//
// The routers add to sums on the device (StepSums). What they need is allocated once, so that a plan knows of it.
// Thread safety: one per rank; not shared.
#pragma once

#include <span>
#include <vector>

#include <orthant/hook.h>

#include "core/layers/layer.h"

namespace orthant {

class RoutingMeter {
 public:
  // Collective over the world. With run.routing_metrics = false, or without experts, it measures nothing. `ranks`:
  // those that train one model.
  RoutingMeter(Plan& plan, Group& ranks);

  // Before a step's first work. measure: whether its routing is measured, the same on every rank.
  void begin(StepSums& sums, bool measure, Stream& s);
  // Behind its backward passes: sums over the ranks. Enqueues.
  void finish(Stream& s);
  // What the device knows of the step, f64: for read(), on the host. Undefined: the step was not measured.
  Tensor numbers() const { return measures_ ? numbers_ : Tensor(); }
  // numbers: of that step. REQUIRES: report.layers and report.tokens are filled.
  void read(StepReport& report, std::span<const double> numbers) const;

 private:
  static constexpr int causes = 3;  // the loss, balance, z
  const Plan& plan_;
  Group& ranks_;
  Group* tokens_ = nullptr;       // of these, the ranks that split a router's tokens
  Tensor gradients_;              // f32 [routed layers of this stage, causes, E, d]
  std::vector<Tensor> by_layer_;  // of it, for each routed layer of the model; undefined on other stages
  Tensor sums_, squares_;         // f64 [routed layers, 3], of `numbers_`
  Tensor numbers_;                // f64 [2, routed layers, 3]
  bool measures_ = false;         // this step
};

}  // namespace orthant
