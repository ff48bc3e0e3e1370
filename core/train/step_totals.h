// StepTotals: the sums of a step, on the device, of this rank and then of all ranks that train one model.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/train/objectives.h"
#include "core/train/teacher.h"

namespace orthant {

class StepTotals {
 public:
  // ranks: those that train one model. teacher: of the head's objective, or null. All references outlive it.
  StepTotals(Plan& plan, const Objectives& objectives, Group& ranks, Teacher* teacher);

  // Where layers and routers add, and what looks on meanwhile.
  StepSums& sums() { return sums_; }
  const StepSums& sums() const { return sums_; }

  // All sums are zero again. counts: of the global batch (StepLoad::counts); none: of passes without training.
  void begin(std::span<const std::int64_t> counts, Stream& s);
  // Behind the last layer. Of ranks that have seen the same tokens one counts. Collective over the ranks. Enqueues.
  void sum_over_ranks(Stream& s);

  // f64: those of the objectives (Objectives::sums), then of balance and z.
  const Tensor& all() const { return all_; }
  const Tensor& of_objectives() const { return of_objectives_; }
  // i64 [routed layers, 2, E], or undefined where no layer is routed.
  Tensor choices() const { return routed_layers() > 0 ? sums_.choices : Tensor(); }
  std::int64_t routed_layers() const { return sums_.choices.dim(0); }

 private:
  const Plan& plan_;
  const Objectives& objectives_;
  Group& ranks_;
  Tensor all_, of_objectives_;
  std::unique_ptr<Stream> beside_;  // StepSums::beside, where the main stream works behind the host
  StepSums sums_;
};

}  // namespace orthant
