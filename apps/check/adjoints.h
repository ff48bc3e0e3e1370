// Are what a layout binds to seams, and what it leaves unbound, linear maps with their adjoints?
//
// f is the map from the tensors of all ranks before a site to those after it. Along an axis that splits tokens, or what
// a region computes (its heads, channels, vocabulary), every rank has a tensor of its own; along any other, all have
// the same one, which counts once:
//
//   <a, b> = sum over ranks of (product over axes with the same tensor of 1 / size) * sum of a_r * b_r, in fp64
//
// and <f(x), y> = <x, f*(y)> must hold for random x and y that are the same where they ought to be. What is partial on
// each rank (the gradient of what every rank reads; the sum of what each has a part of) is a tensor of its own. So
// Megatron's f is the identity and sums gradients, its g sums and passes gradients on, and where an axis splits heads
// but nothing is bound entering attention, that is seen too.
#pragma once

#include <orthant/plan.h>

#include <map>
#include <mutex>
#include <string>

namespace orthant {

// Of one world whose ranks are threads: every rank adds its share.
class InnerProducts {
 public:
  void add(const std::string& where, double forward, double backward, double scale);
  // A mistake that needs no sum.
  void fail(const std::string& what);
  // The first that is wrong, in words; empty: none is. Once all ranks have added.
  std::string first_wrong() const;

 private:
  struct Pair {
    double forward = 0, backward = 0, scale = 0;  // <f(x), y>, <x, f*(y)>, |f(x)| |y| and |x| |f*(y)| by ranks
  };
  mutable std::mutex mutex_;
  std::map<std::string, Pair> pairs_;
  std::string failed_;
};

// Every one of sites(), bound or not. Collective over the world; the plan is frozen.
void add_boundaries(InnerProducts& to, const Plan& plan, Stream& stream);

// The token exchange: adjoints, rows at their experts, and back exactly. REQUIRES: one is bound; the model has experts.
void add_exchange(InnerProducts& to, const Plan& plan, Stream& stream);

}  // namespace orthant
