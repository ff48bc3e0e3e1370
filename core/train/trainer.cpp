#include "core/train/trainer.h"

#include <orthant/gate.h>

#include <cmath>
#include <utility>
#include <vector>

#include "core/arch/links.h"
#include "core/plan/keeper_chain.h"
#include "core/plan/schedule_check.h"
#include "core/trace/tracing_stream.h"
#include "core/train/early_updates.h"
#include "core/train/micro_batches.h"
#include "core/train/not_finite.h"

namespace orthant {

Trainer::Trainer(Plan& plan, Stream& stream, const BatchSource& source, Teacher* teacher)
    : plan_(plan),
      stream_(stream),
      teacher_(teacher),
      objectives_(plan.settings()),
      ranks_(plan.mesh().worker_group("gradient norm")),
      world_(plan.mesh().workers() == 1 ? ranks_ : plan.mesh().world_group("all ranks")),
      feed_(plan, source, objectives_, stream),
      model_(plan, stream),
      routing_(plan, ranks_),
      norm_(plan, model_.parameters(), stream),
      optimizer_(plan, model_.parameters(), stream),
      executor_(plan, stream, feed_.largest_share().micro_batch),
      observers_(plan.settings()),
      totals_(plan, objectives_, ranks_, teacher),
      reports_(plan, objectives_, routing_),
      validator_({plan, stream, objectives_, ranks_, feed_, model_, executor_, totals_, teacher}),
      sum_squares_(plan.device().empty(DType::f64, {1})),
      factor_(plan.device().empty(DType::f32, {1})),
      finite_(plan.device().empty(DType::f32, {1})) {
  const ReferenceModel& named = objectives_.reference();
  require((teacher == nullptr) == named.folder.empty(), "{} = '{}', and the trainer was given {}", named.setting,
          named.folder, teacher == nullptr ? "no such model" : "one");
  stream.fill(finite_, 1);
}

StepReport Trainer::step(std::int64_t step, bool measure) {
  begin(step, measure);
  return finish();
}

// One rank asks the device once, when all its work is enqueued; several also wait for counts of tokens in `load`. A
// step that is not finite has changed nothing: its factor is NaN, and optimizers leave everything as it is then. With
// optimizer.in_backward that holds for the groups alone whose own gradient is not finite.
void Trainer::begin(std::int64_t step, bool measure) {
  const bool behind = reports_.under_way() > 0;
  require(reports_.under_way() < (reports_late() ? 2 : 1), "internal error: step {} begins before step {} is finished",
          step + 1, behind ? reports_.oldest() + 1 : 0);
  StepLoad load = feed_.load(step);
  routing_.begin(totals_.sums(), measure, stream_);
  if (records(load)) {
    std::vector<DeviceBatch> batches;
    for (const HostBatch& host : load.micro_batches) {
      batches.push_back(upload(host, plan_, stream_));
    }
    stream_.together([&] {
      enqueue(load, batches, true);
      update(step, load.valid, behind);
    });
  } else {
    enqueue(load, {}, true);
    update(step, load.valid, behind);
  }
  reports_.begin(std::move(load), rates_of(step).lr, totals_, sum_squares_, stream_);
}

StepReport Trainer::finish() {
  require(reports_.under_way() > 0, "internal error: no step is under way");
  StepReport report = judge(reports_.finish(stream_));
  complete(report);
  return report;
}

StepReport Trainer::gradients(std::int64_t step, bool measure) {
  require(reports_.under_way() == 0, "internal error: gradients are asked for while a step is under way");
  StepLoad load = feed_.load(step);
  last_valid_ = load.valid;
  routing_.begin(totals_.sums(), measure, stream_);
  enqueue(load, {}, false);
  reports_.begin(std::move(load), rates_of(step).lr, totals_, sum_squares_, stream_);
  last_ = judge(reports_.finish(stream_));
  return last_;
}

void Trainer::apply(std::int64_t step) {
  update(step, last_valid_, false);
  complete(last_);
}

// With optimizer.in_backward groups are updated before anybody knows the norm.
bool Trainer::reports_late() const {
  return plan_.device().asynchronous() && world_.size() == 1 && plan_.keepers().empty() && observers_.empty() &&
         teacher_ == nullptr && !plan_.settings().optimizer.in_backward;
}

// Whether the device records the step and runs it as one graph. The first step of another size brings what is not there
// while a device records: memory, modules of kernels. A step that somebody looks on at is read by the host in between.
bool Trainer::records(const StepLoad& load) {
  const int micro_batches = static_cast<int>(load.micro_batches.size());
  const int before = std::exchange(micro_batches_, micro_batches);
  const bool first_of_size = before != 0 && before != micro_batches;
  return plan_.settings().run.graphs && !first_of_size && totals_.sums().tap == nullptr && world_.size() == 1 &&
         plan_.keepers().empty() && plan_.exchange() == nullptr && !plan_.has_stashes_of_plugins();
}

StepRates Trainer::rates_of(std::int64_t step) const {
  return {.lr = observers_.lr_factor() * learning_rate(plan_.settings(), step),
          .capacity_share = observers_.capacity_share()};
}

HookContext Trainer::at_end_of(std::int64_t step) const {
  return {.stream = stream_, .step = step, .lr = rates_of(step).lr};
}

void Trainer::enqueue(const StepLoad& load, std::span<const DeviceBatch> batches, bool updates) {
  enqueued_ = load.step;
  norm_.begin_step();
  optimizer_.begin_step();
  EarlyUpdates early(plan_, norm_, optimizer_, at_end_of(load.step));
  run(load, batches, updates ? &early : nullptr);
  const Phase phase(stream_, "gradient norm and sums");
  early.finish();
  norm_.finish(sum_squares_, ranks_, at_end_of(load.step));
  routing_.finish(stream_);
  totals_.sum_over_ranks(stream_);
  if (ranks_.size() > 1 && totals_.routed_layers() > 0) {
    ranks_.all_reduce(totals_.choices(), ReduceOp::sum, stream_);
  }
}

void Trainer::run(const StepLoad& load, std::span<const DeviceBatch> batches, BackwardListener* listener) {
  model_.begin_step();
  totals_.begin(load.counts, stream_);
  if (teacher_ != nullptr) {
    teacher_->begin_step(load.micro_batches, load.step);
  }
  const std::vector<Instr> program =
      plan_.schedule().steps(plan_.stage(), plan_.stages(), static_cast<int>(load.micro_batches.size()));
  const RecomputeRule rule(plan_.settings().memory, program);
  TrainingWork work(plan_, model_,
                    {.load = load,
                     .batches = batches,
                     .sums = totals_.sums(),
                     .rates = rates_of(load.step),
                     .teacher = teacher_,
                     .rule = &rule,
                     .listener = listener},
                    at_end_of(load.step));
  plan_.stash().begin_step(stash_calls(plan_, program), stream_);
  executor_.run(program, work);
}

void Trainer::update(std::int64_t step, std::span<const std::int64_t> valid, bool behind) {
  const Phase phase(stream_, "optimizer");
  const StepSums& sums = totals_.sums();
  // NaN, where the step before was not finite, else 0: that one ends the run, if as many as may be are passed over.
  if (behind && passed_over_ >= plan_.settings().run.skip_not_finite) {
    stream_.scale(finite_, 0);
    stream_.sum(sum_squares_, finite_);
  }
  if (totals_.routed_layers() > 0) {  // + 0, or NaN where the balance or the z loss is not finite
    stream_.clip_factor(finite_, sums.balance, sums.z, 0);
    stream_.scale(finite_, 0);
    stream_.sum(sum_squares_, finite_);
  }
  stream_.clip_factor(factor_, sum_squares_, sums.loss, static_cast<float>(plan_.settings().optimizer.clip_grad_norm));
  stream_.clip_factor(finite_, sum_squares_, sums.loss, 0);
  optimizer_.apply(factor_, finite_, at_end_of(step));
  update_gates(valid);
}

void Trainer::update_gates(std::span<const std::int64_t> valid) {
  for (const GateState& state : model_.parameters().gate_states()) {
    if (state.learns) {
      const Link& link = plan_.links()[static_cast<std::size_t>(state.layer)];
      const GateUpdate of{.state = state.value,
                          .loads = totals_.sums().choices,
                          .routed = link.routed,
                          .tokens = valid[static_cast<std::size_t>(link.space)],
                          .factor = factor_};
      gate_of(plan_.settings()).update(of, plan_.settings(), stream_);
    }
  }
}

StepReport Trainer::judge(StepReports::Done done) {
  StepReport& report = done.report;
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) {
    passed_over_ = 0;
    return std::move(report);
  }
  if (passed_over_ >= plan_.settings().run.skip_not_finite) {
    explain_not_finite(done.load, report);
  }
  ++passed_over_;
  report.passed_over = true;
  report.routing.clear();  // measured of numbers that are none
  return std::move(report);
}

void Trainer::complete(StepReport& report) {
  plan_.keepers().add_metrics(report.metrics);
  if (!report.passed_over) {
    observers_.after_step(report);
  }
}

void Trainer::explain_not_finite(const StepLoad& load, const StepReport& report) {
  reports_.forget();
  // The gradients of a later step may be there, which has changed nothing: these once more.
  if (enqueued_ != report.step) {
    enqueue(load, {}, false);
  }
  StepSums& sums = totals_.sums();
  FiniteSearch search(plan_, model_, {.load = load, .sums = sums, .rates = rates_of(report.step)},
                      at_end_of(report.step));
  FiniteRouting routing(plan_);
  RoutingTap* const looking = std::exchange(sums.tap, &routing);
  const std::vector<ObjectiveStep> objectives = std::exchange(sums.objectives, {});  // cross entropy shows it too
  executor_.run(forward_passes(plan_, static_cast<int>(load.micro_batches.size())), search);
  sums.tap = looking;
  sums.objectives = objectives;
  refuse_step(report, {search.first_layer(), routing.first_layer()}, norm_, plan_, ranks_, stream_);
}

}  // namespace orthant
