#include "core/train/step_reports.h"

#include <orthant/gate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/arch/decoder.h"
#include "core/arch/links.h"
#include "core/trace/tracing_stream.h"

namespace orthant {

void StepReports::add_counters(StepReport& report, std::span<const std::int64_t> choices,
                               std::span<const std::int64_t> valid) const {
  const MoeSettings& moe = plan_.settings().moe;
  const std::size_t experts = static_cast<std::size_t>(moe.experts);
  const bool by_chance = moe.experts > 0 && gate_of(plan_.settings()).config(plan_.settings()).second_by_chance;
  auto next = choices.begin();
  for (const Link* link : routed_links(plan_.links())) {
    LayerCounters layer{.block = link->block, .load = {next, next + moe.experts}, .kept = {next, next + moe.experts}};
    layer.tokens = valid[static_cast<std::size_t>(link->space)];
    const auto dropped = next + moe.columns();
    layer.zero_choices = std::accumulate(next + moe.experts, dropped, std::int64_t{0});
    std::int64_t made = layer.zero_choices;
    for (std::size_t e = 0; e < experts; ++e) {
      layer.load[e] += dropped[static_cast<std::ptrdiff_t>(e)];
      layer.dropped_by_capacity += dropped[static_cast<std::ptrdiff_t>(e)];
      made += layer.load[e];
    }
    next = dropped + moe.columns();
    // A choice that is not made is a drop where chance left it out; elsewhere the gate wanted fewer.
    layer.choices = by_chance ? layer.tokens * moe.top_k : made;
    layer.dropped_by_chance = layer.choices - made;
    report.layers.push_back(std::move(layer));
  }
}

void StepReports::begin(StepLoad load, double lr, const StepTotals& totals, const Tensor& sum_squares, Stream& s) {
  Begun begun{.load = std::move(load), .lr = lr, .numbers = {}};
  begun.numbers.begin(std::array{totals.all(), sum_squares, totals.choices(), routing_.numbers()}, plan_.device(), s);
  begun_.push_back(std::move(begun));  // last: what fails before leaves none that nobody can finish
}

StepReports::Done StepReports::finish(Stream& s) {
  const Phase phase(s, "report");
  Begun begun = std::move(begun_.front());
  begun_.pop_front();
  const StepLoad& load = begun.load;
  begun.numbers.wait();
  StepReport report;
  report.step = load.step;
  report.lr = begun.lr;
  report.tokens = load.valid.front();
  const std::vector<double> sums = begun.numbers.values<double>(0);
  const double squares = begun.numbers.values<double>(1).front();
  double routed = 0;  // tokens, of all layers together
  for (const Link* link : routed_links(plan_.links())) {
    routed += static_cast<double>(load.valid[static_cast<std::size_t>(link->space)]);
  }
  routed = std::max(routed, 1.0);
  const std::size_t own = static_cast<std::size_t>(objectives_.sums());
  ObjectiveReport learned = objectives_.report(std::span(sums).first(own), load.counts, true);
  report.loss = learned.loss;
  report.figures = std::move(learned.figures);
  report.aux_loss = sums[own] / routed;
  report.z_loss = sums[own + 1] / routed;
  report.grad_norm = std::sqrt(squares);
  add_counters(report, begun.numbers.values<std::int64_t>(2), load.valid);
  if (const std::vector<double> routing = begun.numbers.values<double>(3); !routing.empty()) {
    routing_.read(report, routing);
  }
  require(learned.failure.empty(), "step {}: {}", load.step + 1, learned.failure);
  return {.load = std::move(begun.load), .report = std::move(report)};
}

StepReport over_workers(StepReport report, const Plan& plan, Group& world, Stream& stream) {
  if (plan.mesh().workers() == 1) {
    return report;
  }
  std::vector<double> values = {report.loss, report.aux_loss, report.z_loss, report.grad_norm,
                                static_cast<double>(report.tokens)};
  const std::size_t told = values.size();
  for (const auto& [name, value] : report.figures) {
    values.push_back(value);
  }
  const Tensor sums = plan.device().empty(DType::f64, {static_cast<std::int64_t>(values.size())});
  stream.upload(sums, values.data());
  world.all_reduce(sums, ReduceOp::sum, stream);
  stream.download(values.data(), sums);
  const double ranks = static_cast<double>(world.size());
  report.loss = values[0] / ranks;
  report.aux_loss = values[1] / ranks;
  report.z_loss = values[2] / ranks;
  report.grad_norm = values[3] / ranks;
  report.tokens = static_cast<std::int64_t>(values[4]) * plan.mesh().workers() / world.size();
  std::size_t next = told;
  for (auto& [name, value] : report.figures) {
    value = values[next++] / ranks;
  }
  return report;
}

}  // namespace orthant
