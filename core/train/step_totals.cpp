#include "core/train/step_totals.h"

#include "core/arch/links.h"

namespace orthant {

StepTotals::StepTotals(Plan& plan, const Objectives& objectives, Group& ranks, Teacher* teacher)
    : plan_(plan), objectives_(objectives), ranks_(ranks) {
  Device& device = plan.device();
  const Settings& settings = plan.settings();
  const std::int64_t own = objectives.sums();
  all_ = device.empty(DType::f64, {own + 2});
  of_objectives_ = all_.slice(0, {own});
  sums_.objectives = objectives.in(of_objectives_);
  sums_.loss = all_.slice(0, {1});
  sums_.balance = all_.slice(own, {1});
  sums_.z = all_.slice(own + 1, {1});
  sums_.teacher = teacher;
  sums_.choices = device.empty(DType::i64, {routed_in(plan.links()), 2, settings.moe.columns()});
  sums_.counts = device.empty(DType::i32, sums_.choices.shape());
  if (device.asynchronous()) {
    beside_ = device.make_side_stream();
    sums_.beside = beside_.get();
  }
}

void StepTotals::begin(std::span<const std::int64_t> counts, Stream& s) {
  if (!counts.empty()) {
    objectives_.set_counts(sums_.objectives, counts);
  }
  s.fill(all_, 0);
  s.fill(sums_.choices, 0);
}

void StepTotals::sum_over_ranks(Stream& s) {
  if (!plan_.counts_tokens(Region::head, false)) {
    s.fill(of_objectives_, 0);
  }
  if (!plan_.counts_tokens(Region::router, true)) {
    s.fill(sums_.balance, 0);
    s.fill(sums_.z, 0);
    s.fill(sums_.choices, 0);
  }
  if (ranks_.size() > 1) {
    ranks_.all_reduce(all_, ReduceOp::sum, s);
  }
}

}  // namespace orthant
