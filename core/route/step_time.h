// The step time that other decisions would have had: the run's own, with the experts' products and the exchange's bytes
// replaced.
//
//   t' = (t - experts(old) - exchange(old)) * slots / slots' + experts(new) + exchange(new)
//
// experts: timed here, forward and backward, on this machine, with the rows of each expert of each rank, layer by layer
// and micro-batch by micro-batch. Ranks compute at once as far as there are processors (slots = min(ranks, processors /
// run.threads)): a micro-batch of a layer takes as long as its slowest rank, and at least as all of them on the slots.
// exchange: the bytes inside and between nodes over a rate each. What is neither is shared out over the slots.
// Not in it: the gate, packing on several ranks, waiting that is not for rows.
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
  // stream: of the device, on which all is timed.
  ExpertTimer(const Settings& settings, std::unique_ptr<Device> device, std::unique_ptr<Stream> stream);

  // What a rank's experts work on in a micro-batch of a layer.
  struct Load {
    std::vector<std::int64_t> rows;      // of each local expert
    std::int64_t tokens = 0, top_k = 1;  // whose choices they are; 0 tokens: rows came from other ranks
    bool recomputed = false;             // the forward pass comes twice
    auto operator<=>(const Load&) const = default;
  };
  // Seconds of its forward and backward pass, from tokens to tokens: the best of many.
  double seconds(const Load& load);
  // Bytes a second that this device copies.
  double copy_rate();

 private:
  // Tensors of one load, and what training makes of them.
  class Work;
  double measure(const Load& load);

  const Settings& settings_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::map<Load, double> known_;
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
