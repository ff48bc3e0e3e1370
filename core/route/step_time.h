// The step time that other decisions would have had: the run's own, with the experts' products and the exchange's bytes
// replaced.
//
//   t' = (t - experts(old) - exchange(old)) * slots / slots' + experts(new) + exchange(new)
//
// experts: timed here, forward and backward, on this machine, with the rows of each expert of each rank, layer by layer
// and micro-batch by micro-batch. Ranks compute at once as far as there are processors (slots = min(ranks, processors /
// run.threads)): a micro-batch of a layer takes as long as its slowest rank, and at least as all of them on the slots.
// exchange: the bytes inside and between nodes over a rate each. What is neither is shared out over the slots.
// Not in it: work of the gate and of packing that depends on top_k, waiting that is not for rows.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <orthant/device.h>
#include <orthant/ops.h>

#include "core/route/travel.h"

namespace orthant {

class ExpertTimer {
 public:
  // On a device of the run's kind, with its threads. Errors: those of make_device.
  explicit ExpertTimer(const Settings& settings);

  // Seconds of one layer's forward and backward pass with so many rows for each expert: the best of a few.
  // recomputed: the forward pass comes twice.
  double seconds(const std::vector<std::int64_t>& rows, bool recomputed);
  // Bytes a second that this device copies.
  double copy_rate();

 private:
  double measure(const std::vector<std::int64_t>& rows, bool recomputed);

  const Settings& settings_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::map<std::pair<std::vector<std::int64_t>, bool>, double> known_;
};

struct Rates {
  double inside = 0, between = 0;  // bytes a second
};

// One side of the formula above: all layers of one step.
struct RoutedWork {
  double experts = 0, exchange = 0;  // seconds
  int slots = 1;
};
RoutedWork routed_work(const std::vector<Travel>& layers, const ExpertLayout& layout, const Rates& rates, int slots,
                       ExpertTimer& timer);

// Errors: none; never below the new work by itself.
double predicted_seconds(double measured, const RoutedWork& old_work, const RoutedWork& new_work);

}  // namespace orthant
