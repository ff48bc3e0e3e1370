// A machine: what its datasheet promises, and which part of that a training step has been seen to get.
//
// configs/machines/*.toml hold the promises, with their sources; configs/machines/factors.toml holds the parts, which
// `orthant bench hindcast --fit` writes. A machine file may have a [factors] table of its own, which comes first.
//
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "apps/cost/model_shape.h"

namespace orthant::cost {

// Links of one kind, between the ranks of a group of `ranks`. Listed from the nearest on; the last joins all.
struct LinkClass {
  std::string name;
  int ranks = 0;         // that one group of them joins; 0: any number
  double bandwidth = 0;  // bytes/s of one rank, in one direction
  double latency = 0;    // s of a message
  bool reduces = false;  // switches add up what passes through them
  double sums = 1;       // the part of the bandwidth that an all-reduce gets
  double exchanges = 1;  // the part that an all-to-all gets, with what rows cost on their way into it and out of it
};

// The realisation factors of a generation: five, and no more.
struct Factors {
  double products = 0.75;  // of the peak, in a large product
  double memory = 0.75;    // of the memory's bandwidth
  double links = 0.7;      // of the bandwidth inside a node
  double network = 0.7;    // of the bandwidth between nodes
  double launch = 10e-6;   // s of the host for one launch, with its bookkeeping, where the device waits for it
};

// How today's frameworks run a step: factors that all machines share.
struct Practice {
  double attention = 0.6;  // of the rate of products, in the core of attention
  double overlap = 0.7;    // of the gradients' and gathered weights' time, hidden behind the passes
  double step = 15e-3;     // s of the host between steps
  double spread = 0.1;     // half of the 90 % interval of ln(measured / predicted), over 1.645
};

// The host behind a rank: what is kept and updated there. Zeros: nothing is known of it.
struct Host {
  double bandwidth = 0;         // bytes/s between a rank and its host, in one direction
  double memory_bandwidth = 0;  // bytes/s of the host's memory, of one rank
  double memory = 0;            // bytes, of one rank
};

// Cores that ranks share, where they have no devices of their own. Measured by `orthant bench machine`.
struct Cores {
  int count = 0;        // 0: each rank has a device of its own
  double together = 1;  // the rate of one of `count` ranks at work, over that of one alone
  double cache = 0;     // bytes of a core's own cache; 0: not measured
  double expert = 0;    // s that one expert more costs a product of several, beside its work
  double cached = 1;  // the rate of memory where what an operation touches fits in it, over the rate where it does not
};

struct Machine {
  std::string name;
  std::string generation;           // whose factors it uses
  std::array<double, 4> peak = {};  // FLOP/s by Precision, dense; 0: it has none, and the next wider type is used
  double memory = 0;                // bytes
  double memory_bandwidth = 0;      // bytes/s
  std::vector<LinkClass> links;     // at least one
  Factors factors;
  Host host;
  Cores cores;
  std::optional<Practice> practice;  // of this machine, where it was measured; comes before that of all machines

  // FLOP/s of products of this precision. What the machine cannot do is done in the next wider type.
  double peak_of(Precision precision) const;
  // Of an element that passes between operations. On devices halves, also in fp32: so were the factors fitted.
  double element_bytes(Precision precision) const;
  int node() const { return links.front().ranks; }  // ranks
};

}  // namespace orthant::cost
