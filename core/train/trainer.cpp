#include "core/train/trainer.h"

#include <orthant/gate.h>

#include <algorithm>
#include <utility>

#include "core/arch/links.h"
#include "core/base/output.h"
#include "core/plan/keeper_chain.h"
#include "core/plan/recompute_rule.h"
#include "core/plan/schedule_check.h"
#include "core/trace/tracing_stream.h"
#include "core/train/early_updates.h"
#include "core/train/micro_batches.h"
#include "core/train/model_work.h"
#include "parallel/host_collectives.h"

namespace orthant {

namespace {

// The ranks whose tokens are different parts of one global batch.
std::vector<int> token_ranks(const Plan& plan) {
  return plan.sum_members(ParamSpec{.name = "tokens", .global = {1}, .region = Region::embedding});
}

}  // namespace

Trainer::Trainer(Plan& plan, Stream& stream, const BatchSource& source, Teacher* teacher)
    : plan_(plan),
      stream_(stream),
      source_(source),
      teacher_(teacher),
      objectives_(plan.settings()),
      shares_(batch_shares(plan)),
      ranks_(plan.mesh().worker_group("gradient norm")),
      world_(plan.mesh().workers() == 1 ? ranks_ : plan.mesh().world_group("all ranks")),
      tokens_(plan.mesh().group_of("tokens", token_ranks(plan))),
      model_(std::make_unique<Model>(plan, stream)),
      routing_(plan, ranks_),
      norm_(plan, model_->parameters(), stream),
      optimizer_(plan, model_->parameters(), stream),
      executor_(plan, stream, micro_batch_tokens(plan)),
      observers_(plan.settings()) {
  const ReferenceModel& named = objectives_.reference();
  require((teacher == nullptr) == named.folder.empty(), "{} = '{}', and the trainer was given {}", named.setting,
          named.folder, teacher == nullptr ? "no such model" : "one");
  Device& device = plan.device();
  const std::int64_t own = objectives_.sums();
  sum_storage_ = device.empty(DType::f64, {own + 2});
  objective_sums_ = sum_storage_.slice(0, {own});
  sums_.objectives = objectives_.in(objective_sums_);
  sums_.loss = sum_storage_.slice(0, {1});
  sums_.balance = sum_storage_.slice(own, {1});
  sums_.z = sum_storage_.slice(own + 1, {1});
  sums_.teacher = teacher;
  if (device.asynchronous()) {
    beside_ = device.make_side_stream();
    sums_.beside = beside_.get();
  }
  sum_squares_ = device.empty(DType::f64, {1});
  factor_ = device.empty(DType::f32, {1});
  finite_ = device.empty(DType::f32, {1});
  stream.fill(finite_, 1);
  routed_layers_ = routed_in(plan.links());
  sums_.choices = device.empty(DType::i64, {routed_layers_, 2, plan.settings().moe.columns()});
  sums_.counts = device.empty(DType::i32, sums_.choices.shape());
}

Trainer::~Trainer() = default;

const BatchShare& Trainer::share_of(std::int64_t step) const {
  return shares_.at(times_grown(plan_.settings().batch, step));
}

Trainer::Load Trainer::read(std::int64_t step) const {
  const Phase phase(stream_, "batch");
  Load load{.micro_batches = {}, .counts = std::vector<std::int64_t>(objectives_.counts(), 0)};
  const BatchShare& share = share_of(step);
  for (int m = 0; m < share.micro_batches; ++m) {
    load.micro_batches.push_back(source_.train(step, share.first + m * share.micro_batch, share.micro_batch));
    load.valid += objectives_.count(load.micro_batches.back(), plan_, load.counts);
  }
  return load;
}

void Trainer::read_ahead(std::int64_t step) {
  ahead_ = {step, {}, nullptr};
  try {
    ahead_->load = read(step);
  } catch (...) {
    ahead_->failure = std::current_exception();
  }
}

Trainer::Load Trainer::load(std::int64_t step) {
  std::optional<ReadAhead> ahead = std::exchange(ahead_, std::nullopt);
  const bool known = ahead.has_value() && ahead->step == step;
  if (known && ahead->failure != nullptr) {
    std::rethrow_exception(ahead->failure);
  }
  Load load = known ? std::move(ahead->load) : read(step);
  const Phase phase(stream_, "batch");
  load.counts.push_back(load.valid);
  all_reduce_values(load.counts, ReduceOp::sum, tokens_, stream_);
  load.valid = load.counts.back();
  load.counts.pop_back();
  if (load.valid <= 0) {
    require_all_alive(tokens_, stream_);
    fail("step {} has no token", step);
  }
  if (load.counts.front() <= 0) {  // conversations without an answer
    load.counts.front() = 1;       // the loss is 0, and nothing is divided by 0
    if (plan_.mesh().rank() == 0) {
      say("orthant: note: step {} has no token that counts in the loss, which is 0", step + 1);
    }
  }
  return load;
}

StepContext Trainer::context(const Load& load, const DeviceBatch& batch, std::int64_t step, int micro_batch) {
  const MoeSettings& moe = plan_.settings().moe;
  const double valid = static_cast<double>(std::max<std::int64_t>(load.valid, 1));
  return {.plan = plan_,
          .stream = stream_,
          .batch = batch,
          .sums = sums_,
          .step = static_cast<std::uint32_t>(step),
          .lr = learning_rate_of(step),
          .capacity_share = observers_.capacity_share(),
          .micro_batch = micro_batch,
          .training = true,
          .loss_scale = static_cast<float>(1.0 / static_cast<double>(load.counts.front())),
          .aux_scale = static_cast<float>(moe.aux_loss / valid),
          .z_scale = static_cast<float>(moe.z_loss / valid)};
}

HookContext Trainer::at_end_of(std::int64_t step) const {
  return {.stream = stream_, .step = step, .lr = learning_rate_of(step)};
}

std::vector<DeviceBatch> Trainer::upload_all(const Load& load) {
  std::vector<DeviceBatch> batches;
  for (const HostBatch& host : load.micro_batches) {
    batches.push_back(upload(host, plan_, stream_));
  }
  return batches;
}

void Trainer::run(const Load& load, std::span<const DeviceBatch> batches, std::int64_t step,
                  BackwardListener* listener) {
  model_->begin_step();
  objectives_.set_counts(sums_.objectives, load.counts);
  stream_.fill(sum_storage_, 0);
  stream_.fill(sums_.choices, 0);
  if (teacher_ != nullptr) {
    teacher_->begin_step(load.micro_batches, step);
  }
  auto batch_of = [&](int m) {
    const std::size_t number = static_cast<std::size_t>(m);
    if (teacher_ != nullptr) {
      teacher_->read(m);
    }
    return batches.empty() ? upload(load.micro_batches[number], plan_, stream_) : batches[number];
  };
  const std::vector<Instr> program =
      plan_.schedule().steps(plan_.stage(), plan_.stages(), share_of(step).micro_batches);
  const RecomputeRule rule(plan_.settings().memory, program);
  const auto context_of = [&](const DeviceBatch& batch, int chunk, int m) {
    StepContext ctx = context(load, batch, step, m);
    ctx.recompute = rule.of(chunk, m);
    return ctx;
  };
  ModelWork work(plan_, *model_, batch_of, context_of, at_end_of(step), listener);
  plan_.stash().begin_step(stash_calls(plan_, program), stream_);
  executor_.run(program, work);
}

std::vector<Instr> Trainer::forward_passes(int micro_batches) const {
  const int pieces = static_cast<int>(plan_.cut().size()) - 1;
  return forward_program(plan_.stage(), plan_.stages(), pieces / plan_.stages(), micro_batches);
}

void Trainer::sum_over_ranks() {
  if (!plan_.counts_tokens(Region::head, false)) {
    stream_.fill(objective_sums_, 0);
  }
  if (!plan_.counts_tokens(Region::router, true)) {
    stream_.fill(sums_.balance, 0);
    stream_.fill(sums_.z, 0);
    stream_.fill(sums_.choices, 0);
  }
  if (ranks_.size() > 1) {
    ranks_.all_reduce(sum_storage_, ReduceOp::sum, stream_);
  }
}

// All that is enqueued before anybody waits: what a step has summed, over the ranks that train one model. updates:
// whether groups may be updated meanwhile.
void Trainer::enqueue(const Load& load, std::span<const DeviceBatch> batches, std::int64_t step, bool updates) {
  enqueued_ = step;
  norm_.begin_step();
  optimizer_.begin_step();
  EarlyUpdates early(plan_, norm_, optimizer_, at_end_of(step));
  run(load, batches, step, updates ? &early : nullptr);
  const Phase phase(stream_, "gradient norm and sums");
  early.finish();
  norm_.finish(sum_squares_, ranks_, at_end_of(step));
  routing_.finish(stream_);
  sum_over_ranks();
  if (ranks_.size() > 1 && routed_layers_ > 0) {
    ranks_.all_reduce(sums_.choices, ReduceOp::sum, stream_);
  }
}

StepReport Trainer::gradients(std::int64_t step, bool measure) {
  require(begun_.empty(), "internal error: gradients are asked for while a step is under way");
  Load loaded = load(step);
  routing_.begin(sums_, measure, stream_);
  enqueue(loaded, {}, step, false);
  remember(std::move(loaded), step);
  Begun begun = std::move(begun_.front());
  begun_.pop_front();
  last_ = report(begun);
  return last_;
}

void Trainer::apply(std::int64_t step) {
  update(step, last_.tokens, false);
  complete(last_);
}

void Trainer::complete(StepReport& report) {
  plan_.keepers().add_metrics(report.metrics);
  if (!report.passed_over) {
    observers_.after_step(report);
  }
}

double Trainer::learning_rate_of(std::int64_t step) const {
  return observers_.lr_factor() * learning_rate(plan_.settings(), step);
}

void Trainer::update(std::int64_t step, std::int64_t tokens, bool behind) {
  const Phase phase(stream_, "optimizer");
  // NaN, where the step before was not finite, else 0: that one ends the run, if as many as may be are passed over.
  if (behind && passed_over_ >= plan_.settings().run.skip_not_finite) {
    stream_.scale(finite_, 0);
    stream_.sum(sum_squares_, finite_);
  }
  if (routed_layers_ > 0) {  // + 0, or NaN where the balance or the z loss is not finite
    stream_.clip_factor(finite_, sums_.balance, sums_.z, 0);
    stream_.scale(finite_, 0);
    stream_.sum(sum_squares_, finite_);
  }
  stream_.clip_factor(factor_, sum_squares_, sums_.loss, static_cast<float>(plan_.settings().optimizer.clip_grad_norm));
  stream_.clip_factor(finite_, sum_squares_, sums_.loss, 0);
  optimizer_.apply(factor_, finite_, at_end_of(step));
  for (const GateState& state : model_->parameters().gate_states()) {
    if (state.learns) {
      const GateUpdate of{.state = state.value,
                          .loads = sums_.choices,
                          .routed = plan_.links()[static_cast<std::size_t>(state.layer)].routed,
                          .tokens = tokens,
                          .factor = factor_};
      gate_of(plan_.settings()).update(of, plan_.settings(), stream_);
    }
  }
}

StepReport Trainer::step(std::int64_t step, bool measure) {
  begin(step, measure);
  return finish();
}

// With optimizer.in_backward groups are updated before anybody knows the norm.
bool Trainer::reports_late() const {
  return plan_.device().asynchronous() && world_.size() == 1 && plan_.keepers().empty() && observers_.empty() &&
         teacher_ == nullptr && !plan_.settings().optimizer.in_backward;
}

bool Trainer::report_is_there() const {
  return !begun_.empty() && begun_.front().numbers.ready();
}

// One rank asks the device once, when all its work is enqueued; several also wait for counts of tokens in `load`. A
// step that is not finite has changed nothing: its factor is NaN, and optimizers leave everything as it is then. With
// optimizer.in_backward that holds for the groups alone whose own gradient is not finite.
void Trainer::begin(std::int64_t step, bool measure) {
  const bool behind = !begun_.empty();
  require(begun_.size() < (reports_late() ? 2 : 1), "internal error: step {} begins before step {} is finished",
          step + 1, behind ? begun_.front().step + 1 : 0);
  Load loaded = load(step);
  routing_.begin(sums_, measure, stream_);
  // The first step of another size brings what is not there while a device records: memory, modules of kernels.
  const int micro_batches = share_of(step).micro_batches, before = std::exchange(micro_batches_, micro_batches);
  const bool first_of_size = before != 0 && before != micro_batches;
  // A step that somebody looks on at is read by the host in between.
  if (plan_.settings().run.graphs && !first_of_size && sums_.tap == nullptr && world_.size() == 1 &&
      plan_.keepers().empty() && plan_.exchange() == nullptr && !plan_.has_stashes_of_plugins()) {
    const std::vector<DeviceBatch> batches = upload_all(loaded);
    stream_.together([&] {
      enqueue(loaded, batches, step, true);
      update(step, loaded.valid, behind);
    });
  } else {
    enqueue(loaded, {}, step, true);
    update(step, loaded.valid, behind);
  }
  remember(std::move(loaded), step);
}

StepReport Trainer::finish() {
  require(!begun_.empty(), "internal error: no step is under way");
  Begun begun = std::move(begun_.front());
  begun_.pop_front();
  StepReport done = report(begun);
  complete(done);
  return done;
}

}  // namespace orthant
