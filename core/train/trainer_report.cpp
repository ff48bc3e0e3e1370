// What a trainer reports of a step, and why it refuses one.
#include <orthant/gate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/arch/parameter_table.h"
#include "core/layers/preference_loss.h"
#include "core/plan/keeper_chain.h"
#include "core/session/teacher_config.h"
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
  for (int block = 0; block < blocks_of(plan_.settings()); ++block) {
    if (!block_has_experts(plan_.settings(), block)) {
      continue;
    }
    LayerCounters layer{.layer = block + 1, .load = {next, next + moe.experts}, .kept = {next, next + moe.experts}};
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

std::optional<double> Trainer::mtp_loss(std::span<const double> sums, std::span<const std::int64_t> counted) {
  if (counted.empty()) {
    return std::nullopt;
  }
  double loss = 0;
  for (std::size_t k = 0; k < counted.size(); ++k) {
    loss += sums[main_sums + k] / static_cast<double>(std::max<std::int64_t>(counted[k], 1));
  }
  return loss / static_cast<double>(counted.size());
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
  const Measured measured{sums, load.counted, load.chosen};
  report.loss = loss_of(measured);
  report.aux_loss = sums[1] / routed;
  report.z_loss = sums[2] / routed;
  report.metrics = pair_metrics(measured);
  if (teacher_ != nullptr && !sums_.preference.defined()) {
    const double temperature = plan_.settings().distil.temperature;
    report.distil_loss = temperature * temperature * sums[3] / static_cast<double>(load.counted);
  }
  report.mtp_loss = mtp_loss(sums, load.ahead);
  report.grad_norm = std::sqrt(squares);
  add_counters(report, begun.numbers.values<std::int64_t>(2), load.valid);
  if (const std::vector<double> routing = begun.numbers.values<double>(3); !routing.empty()) {
    routing_.read(report, routing);
  }
  require(std::isfinite(report.distil_loss.value_or(0)) || !std::isfinite(report.loss),
          "step {}: the loss is {}, but the teacher's logits ('{}') are not finite", step + 1, report.loss,
          plan_.settings().distil.teacher);
  require(!sums_.preference.defined() ||
              std::isfinite(sums[main_sums + static_cast<std::size_t>(PairSum::reference)]) ||
              !std::isfinite(sums[main_sums + static_cast<std::size_t>(PairSum::logp_chosen)] +
                             sums[main_sums + static_cast<std::size_t>(PairSum::logp_rejected)]),
          "step {}: the reference's logits ('{}') are not finite", step + 1, teacher_of(plan_.settings()).folder);
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
  report.metrics.clear();
  return report;
}

StepReport Trainer::over_workers(StepReport report) {
  if (plan_.mesh().workers() == 1) {
    return report;
  }
  std::vector<double> values = {report.loss,
                                report.aux_loss,
                                report.z_loss,
                                report.grad_norm,
                                report.distil_loss.value_or(0),
                                report.mtp_loss.value_or(0),
                                static_cast<double>(report.tokens)};
  const std::size_t told = values.size();
  std::vector<std::string> of_pairs;
  for (const auto& [name, value] : report.metrics) {
    if (sums_.preference.defined() && (name.find('/') != std::string::npos || name == "nll_loss")) {
      of_pairs.push_back(name);
      values.push_back(value);
    }
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
  if (report.distil_loss.has_value()) {
    report.distil_loss = values[4] / ranks;
  }
  if (report.mtp_loss.has_value()) {
    report.mtp_loss = values[5] / ranks;
  }
  report.tokens = static_cast<std::int64_t>(values[6]) * plan_.mesh().workers() / world_.size();
  for (std::size_t i = 0; i < of_pairs.size(); ++i) {
    report.metrics[of_pairs[i]] = values[told + i] / ranks;
  }
  return report;
}

double Trainer::loss_of(const Measured& of) const {
  double loss = of.sums[0] / static_cast<double>(of.counted);
  if (sums_.preference.defined() && of.chosen > 0) {
    const double nll = of.sums[main_sums + static_cast<std::size_t>(PairSum::nll)] / static_cast<double>(of.chosen);
    loss += plan_.settings().preference.nll_weight * nll;
  }
  return loss;
}

// Under TRL's names.
std::map<std::string, double> Trainer::pair_metrics(const Measured& of) const {
  if (!sums_.preference.defined()) {
    return {};
  }
  const auto sum = [&](PairSum which) { return of.sums[main_sums + static_cast<std::size_t>(which)]; };
  const auto mean = [&](PairSum which) { return sum(which) / static_cast<double>(of.counted); };
  return {{"rewards/chosen", mean(PairSum::reward_chosen)},
          {"rewards/rejected", mean(PairSum::reward_rejected)},
          {"rewards/margins", mean(PairSum::reward_chosen) - mean(PairSum::reward_rejected)},
          {"rewards/accuracies", mean(PairSum::right)},
          {"logps/chosen", mean(PairSum::logp_chosen)},
          {"logps/rejected", mean(PairSum::logp_rejected)},
          {"nll_loss", sum(PairSum::nll) / static_cast<double>(std::max<std::int64_t>(of.chosen, 1))}};
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
  TeacherLogits* const teacher = std::exchange(sums_.teacher, nullptr);  // the model's own numbers are looked at
  executor_.run(forward_passes(share_of(report.step).micro_batches), search);
  sums_.tap = looking;
  sums_.teacher = teacher;
  refuse_step(report, {search.first_layer(), routing.first_layer()}, norm_, plan_.settings(), ranks_, stream_);
}

}  // namespace orthant
