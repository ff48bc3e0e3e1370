// Trainer: one optimizer step after another on one rank. The core owns the step; plugins meet it at the seams.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/train/batch_feed.h"
#include "core/train/executor.h"
#include "core/train/gradient_norm.h"
#include "core/train/objectives.h"
#include "core/train/observers.h"
#include "core/train/optimizer_step.h"
#include "core/train/routing_meter.h"
#include "core/train/step_reports.h"
#include "core/train/step_totals.h"
#include "core/train/training_work.h"
#include "core/train/validator.h"

namespace orthant {

class Trainer {
 public:
  // Collective over the world. All references outlive the trainer. teacher: of distil.teacher, or the reference of
  // pairs of answers; null where there is none.
  Trainer(Plan& plan, Stream& stream, const BatchSource& source, Teacher* teacher = nullptr);

  // One optimizer step. When loss, balance or z loss, or gradient is not finite nothing is applied (with
  // optimizer.in_backward: only what was finite by itself). The report says so (passed_over) up to run.skip_not_finite
  // times in a row, and hooks do not see it; else Error names the layer and rank where it began. measure: the report
  // tells of the routing too, where run.routing_metrics wants that.
  StepReport step(std::int64_t step, bool measure = false);

  // The same in two halves, so that the host works for the next step while the device computes. begin() enqueues a
  // step; finish() waits for the report of the oldest step that was begun, and throws what step() throws.
  // REQUIRES: one step is under way at most, with reports_late() two.
  void begin(std::int64_t step, bool measure = false);
  StepReport finish();
  // Whether finish() would return at once: the device has done that step.
  bool report_is_there() const { return reports_.is_there(); }
  // Whether a step may be begun before the one before it is finished: the device runs behind the host, and nobody
  // changes the next step by what this one reports. A step behind one that was not finite and ends the run changes
  // nothing.
  bool reports_late() const;
  // Reads this step's batch from its source now, for begin(). What fails, fails there.
  void read_ahead(std::int64_t step) { feed_.read_ahead(step); }

  // Everything of step() but the optimizer's update: gradients stay in parameters() for comparison.
  StepReport gradients(std::int64_t step, bool measure = false);
  // Applies the update for the gradients of the last call of gradients(), and lets the hooks see that step.
  void apply(std::int64_t step);

  // As orthant::over_workers, over the world.
  StepReport over_workers(StepReport report) {
    return orthant::over_workers(std::move(report), plan_, world_, stream_);
  }

  // As Validator::loss and Validator::sets.
  double validate() { return validator_.loss(); }
  Validation validate_sets() { return validator_.sets(); }

  // `tap` looks on while routers decide in training, until another does; null: nobody. It outlives its turn.
  void look_on(RoutingTap* tap) { totals_.sums().tap = tap; }

  // Steps that were passed over since the last one that was applied: what a checkpoint remembers, and a run that goes
  // on from it is told before its first step.
  std::int64_t passed_over() const { return passed_over_; }
  void resume_behind(std::int64_t passed_over) { passed_over_ = passed_over; }

  Model& model() { return model_; }
  ParamStore& parameters() { return model_.parameters(); }
  Group& world() { return world_; }
  Observers& observers() { return observers_; }

 private:
  // --- a step, in this order
  // What every rank enqueues before anybody waits: the passes of all micro-batches, the gradient's norm, the sums over
  // the ranks that train one model. `batches`: as TrainingWork's. updates: whether groups may be updated meanwhile.
  void enqueue(const StepLoad& load, std::span<const DeviceBatch> batches, bool updates);
  void run(const StepLoad& load, std::span<const DeviceBatch> batches, BackwardListener* listener);
  // behind: a step before this one is not finished. Where that one ends the run, nothing changes.
  // valid: StepLoad::valid.
  void update(std::int64_t step, std::span<const std::int64_t> valid, bool behind);
  void update_gates(std::span<const std::int64_t> valid);
  StepReport judge(StepReports::Done done);  // whether it may be, or counts as passed over
  void complete(StepReport& report);         // by what keepers and hooks say

  bool records(const StepLoad& load);
  [[noreturn]] void explain_not_finite(const StepLoad& load, const StepReport& report);
  StepRates rates_of(std::int64_t step) const;
  HookContext at_end_of(std::int64_t step) const;

  Plan& plan_;
  Stream& stream_;
  Teacher* teacher_;
  const Objectives objectives_;
  Group& ranks_;  // that train one model, for norms and sums: all of them unless workers are independent
  Group& world_;
  BatchFeed feed_;
  Model model_;
  RoutingMeter routing_;
  GradientNorm norm_;
  OptimizerStep optimizer_;
  Executor executor_;
  Observers observers_;
  StepTotals totals_;
  StepReports reports_;
  Validator validator_;
  Tensor sum_squares_;                    // f64 [1]
  Tensor factor_;                         // f32 [1]
  Tensor finite_;                         // f32 [1]: 1, NaN where the step is not finite
  StepReport last_;                       // of gradients()
  std::vector<std::int64_t> last_valid_;  // of its batch
  std::int64_t passed_over_ = 0;          // steps in a row, up to the last one that was reported
  std::int64_t enqueued_ = -1;            // the step whose gradients are there
  int micro_batches_ = 0;                 // of the step that began last; 0: none has
};

}  // namespace orthant
