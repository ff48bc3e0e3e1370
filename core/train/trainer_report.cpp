// What a trainer reports of a step, and why it refuses one.
#include <orthant/gate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/arch/decoder.h"
#include "core/plan/keeper_chain.h"
#include "core/trace/tracing_stream.h"
#include "core/train/micro_batches.h"
#include "core/train/not_finite.h"
#include "core/train/trainer.h"

namespace orthant {

void Trainer::add_counters(StepReport& report, std::span<const std::int64_t> choices, std::int64_t valid) const {
  const MoeSettings& moe = plan_.settings().moe;
  const std::size_t experts = static_cast<std::size_t>(moe.experts);
  const bool by_chance = moe.experts > 0 && gate_of(plan_.settings()).config(plan_.settings()).second_by_chance;
  auto next = choices.begin();
  for (const Link* link : routed_links(plan_.links())) {
    LayerCounters layer{.block = link->block, .load = {next, next + moe.experts}, .kept = {next, next + moe.experts}};
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
    layer.choices = by_chance ? valid * moe.top_k : made;
    layer.dropped_by_chance = layer.choices - made;
    report.layers.push_back(std::move(layer));
  }
}

// Asks for what the report of this step needs.
void Trainer::remember(Load load, std::int64_t step) {
  Begun begun{.load = std::move(load), .step = step, .lr = learning_rate_of(step), .numbers = {}};
  const Tensor choices = routed_layers_ > 0 ? sums_.choices : Tensor();
  begun.numbers.begin(std::array{sum_storage_, sum_squares_, choices, routing_.numbers()}, plan_.device(), stream_);
  begun_.push_back(std::move(begun));  // last: what fails before leaves none that nobody can finish
}

StepReport Trainer::report(Begun& begun) {
  const Phase phase(stream_, "report");
  const Load& load = begun.load;
  const std::int64_t step = begun.step;
  begun.numbers.wait();
  StepReport report;
  report.step = step;
  report.lr = begun.lr;
  report.tokens = load.valid;
  const std::vector<double> sums = begun.numbers.values<double>(0);
  const double squares = begun.numbers.values<double>(1).front();
  const double routed = static_cast<double>(std::max(routed_layers_, 1)) * static_cast<double>(load.valid);
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
  require(learned.failure.empty(), "step {}: {}", step + 1, learned.failure);
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) {
    passed_over_ = 0;
    return report;
  }
  if (passed_over_ >= plan_.settings().run.skip_not_finite) {
    explain_not_finite(load, report);
  }
  ++passed_over_;
  report.passed_over = true;
  report.routing.clear();  // measured of numbers that are none
  return report;
}

StepReport Trainer::over_workers(StepReport report) {
  if (plan_.mesh().workers() == 1) {
    return report;
  }
  std::vector<double> values = {report.loss, report.aux_loss, report.z_loss, report.grad_norm,
                                static_cast<double>(report.tokens)};
  const std::size_t told = values.size();
  for (const auto& [name, value] : report.figures) {
    values.push_back(value);
  }
  const Tensor sums = plan_.device().empty(DType::f64, {static_cast<std::int64_t>(values.size())});
  stream_.upload(sums, values.data());
  world_.all_reduce(sums, ReduceOp::sum, stream_);
  stream_.download(values.data(), sums);
  const double ranks = static_cast<double>(world_.size());
  report.loss = values[0] / ranks;
  report.aux_loss = values[1] / ranks;
  report.z_loss = values[2] / ranks;
  report.grad_norm = values[3] / ranks;
  report.tokens = static_cast<std::int64_t>(values[4]) * plan_.mesh().workers() / world_.size();
  std::size_t next = told;
  for (auto& [name, value] : report.figures) {
    value = values[next++] / ranks;
  }
  return report;
}

void Trainer::explain_not_finite(const Load& load, const StepReport& report) {
  begun_.clear();
  if (enqueued_ !=
      report.step) {  // the gradients of a later step are there, which has changed nothing: these once more
    enqueue(load, {}, report.step, false);
  }
  auto evaluate = [&](const DeviceBatch& batch, int, int m) {
    StepContext ctx = context(load, batch, report.step, m);
    ctx.training = false;
    return ctx;
  };
  FiniteSearch search(
      plan_, *model_, [&](int m) { return upload(load.micro_batches[m], plan_, stream_); }, evaluate,
      at_end_of(report.step), sums_.loss);
  FiniteRouting routing(plan_);
  RoutingTap* const looking = std::exchange(sums_.tap, &routing);
  const std::vector<ObjectiveStep> objectives = std::exchange(sums_.objectives, {});  // cross entropy shows it too
  executor_.run(forward_passes(share_of(report.step).micro_batches), search);
  sums_.tap = looking;
  sums_.objectives = objectives;
  refuse_step(report, {search.first_layer(), routing.first_layer()}, norm_, plan_, ranks_, stream_);
}

}  // namespace orthant
