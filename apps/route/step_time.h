// The step time that other decisions would have had: the run's own, with the experts' products, the gates and the
// exchange's bytes replaced.
//
//   t' = (t - work(old)) * slots / slots' + work(new), work = experts + gates + exchange
//
// experts: timed here, forward and backward, on this machine, with the rows of each expert of each rank, layer by layer
// and micro-batch by micro-batch. Ranks compute at once as far as there are processors (slots = min(ranks, processors /
// run.threads)): a micro-batch of a layer takes as long as its slowest rank, and at least as all of them on the slots.
// gates: timed here with the recorded logits of a micro-batch: choices, seats, losses, and the gradient of the logits.
// exchange: timed here where it can be tried (exchange_trial.h), packing of rows included; else, and where rates are
// given, the bytes inside and between nodes over a rate each. What is neither is shared out over the slots.
// Not in it: counters of routing, waiting that is not for rows; without a trial, packing on several ranks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <orthant/device.h>
#include <orthant/ops.h>

#include "apps/route/expert_pass.h"
#include "apps/route/travel.h"

namespace orthant {

class WorkTimer {
 public:
  // On a device of the run's kind, with its threads. Errors: those of make_device.
  explicit WorkTimer(const Settings& settings);
  // stream: of the device, on which all is timed.
  WorkTimer(const Settings& settings, std::unique_ptr<Device> device, std::unique_ptr<Stream> stream);

  // Seconds of its forward and backward pass, from tokens to tokens: the best of many.
  double seconds(const ExpertLoad& load);
  // Seconds of the gates of all recorded layers, for `tokens` of the step each: the best of many.
  // settings: the recorded run's, or changed as for replay. Errors: those of GatePass.
  double gates(const RecordedStep& step, const Settings& settings, std::int64_t tokens);
  // Bytes a second that this device copies.
  double copy_rate();

 private:
  double measure(const ExpertLoad& load);

  const Settings& settings_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::map<ExpertLoad, double> known_;
};

struct Rates {
  double inside = 0, between = 0;  // bytes a second
};

// One side of the formula above: all layers of one step.
struct RoutedWork {
  double experts = 0, gates = 0, exchange = 0;  // seconds
  int slots = 1;
  double seconds() const { return experts + gates + exchange; }
};
// settings: those that decided `layers`. tried: seconds of the exchange; nothing: as the rates say.
RoutedWork routed_work(const RecordedStep& step, const Settings& settings, const std::vector<Travel>& layers,
                       const ExpertLayout& layout, const Rates& rates, const std::optional<double>& tried, int slots,
                       WorkTimer& timer);

// Errors: none; never below the new work by itself.
double predicted_seconds(double measured, const RoutedWork& old_work, const RoutedWork& new_work);

}  // namespace orthant
