// Trainer: one optimizer step after another on one rank. The core owns the step; plugins meet it at the seams.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/data/batch.h"
#include "core/model/model.h"
#include "core/plan/batch_share.h"
#include "core/train/executor.h"
#include "core/train/gradient_norm.h"
#include "core/train/objectives.h"
#include "core/train/observers.h"
#include "core/train/optimizer_step.h"
#include "core/train/readback.h"
#include "core/train/routing_meter.h"
#include "core/train/teacher.h"
#include "core/train/validation_routing.h"

namespace orthant {

// Losses in nats per token, or per pair of answers.
struct Validation {
  double loss = 0;
  std::vector<std::pair<std::string, double>> sets;  // by name, in the source's order
  std::vector<ValidatedRouting> routing;
  std::map<std::string, double> figures;  // as StepReport's, over all that `loss` is of
};

class Trainer {
 public:
  // Collective over the world. All references outlive the trainer. teacher: of distil.teacher, or the reference of
  // pairs of answers; null where there is none.
  Trainer(Plan& plan, Stream& stream, const BatchSource& source, Teacher* teacher = nullptr);
  ~Trainer();

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
  bool report_is_there() const;
  // Whether a step may be begun before the one before it is finished: the device runs behind the host, and nobody
  // changes the next step by what this one reports. A step behind one that was not finite and ends the run changes
  // nothing.
  bool reports_late() const;
  // Reads this step's batch from its source now, for begin(). What fails, fails there.
  void read_ahead(std::int64_t step);

  // Everything of step() but the optimizer's update: gradients stay in parameters() for comparison.
  StepReport gradients(std::int64_t step, bool measure = false);
  // Applies the update for the gradients of the last call of gradients(), and lets the hooks see that step.
  void apply(std::int64_t step);

  // What the workers report together, where they are independent: means of losses and norms, the sum of tokens;
  // counters stay those of this rank's worker. Else `report` as it is. Collective over the world.
  StepReport over_workers(StepReport report);

  // Mean loss over the held-out sequences, in nats per token; where none are, over those of all the source's sets. Each
  // rank that splits the batch takes its part; each independent worker measures its own weights on all of them.
  double validate();
  // The same, with the loss of each set, and what all that was measured tells of routing, layer by layer; nothing of
  // that where run.routing_metrics does not want it.
  Validation validate_sets();

  // `tap` looks on while routers decide in training, until another does; null: nobody. It outlives its turn.
  void look_on(RoutingTap* tap) { sums_.tap = tap; }

  // Steps that were passed over since the last one that was applied: what a checkpoint remembers, and a run that goes
  // on from it is told before its first step.
  std::int64_t passed_over() const { return passed_over_; }
  void resume_behind(std::int64_t passed_over) { passed_over_ = passed_over; }

  Model& model() { return *model_; }
  ParamStore& parameters() { return model_->parameters(); }
  Group& world() { return world_; }
  Observers& observers() { return observers_; }

 private:
  struct Load {
    std::vector<HostBatch> micro_batches;
    // Of the global batch: tokens that are not padding, and what the objectives count.
    std::int64_t valid = 0;
    std::vector<std::int64_t> counts;
  };
  struct Begun {
    Load load;
    std::int64_t step;
    double lr;
    Readback numbers;  // sum_storage_, sum_squares_, sums_.choices, routing_
  };
  // Of this rank's part alone, with its own counts. Or what hindered it.
  struct ReadAhead {
    std::int64_t step;
    Load load;
    std::exception_ptr failure;
  };
  void sum_over_ranks();  // sum_storage_, once a step
  const BatchShare& share_of(std::int64_t step) const;
  Load read(std::int64_t step) const;
  Load load(std::int64_t step);
  std::vector<DeviceBatch> upload_all(const Load& load);
  // `batches`: the micro-batches where they are on the device already; empty: each goes there when its turn comes.
  void run(const Load& load, std::span<const DeviceBatch> batches, std::int64_t step, BackwardListener* listener);
  void enqueue(const Load& load, std::span<const DeviceBatch> batches, std::int64_t step, bool updates);
  // behind: a step before this one is not finished. Where that one ends the run, nothing changes.
  // tokens: of the global batch that are not padding.
  void update(std::int64_t step, std::int64_t tokens, bool behind);
  double learning_rate_of(std::int64_t step) const;
  void remember(Load load, std::int64_t step);
  StepReport report(Begun& begun);
  void complete(StepReport& report);  // by what keepers and hooks say
  void add_counters(StepReport& report, std::span<const std::int64_t> choices, std::int64_t valid) const;
  [[noreturn]] void explain_not_finite(const Load& load, const StepReport& report);
  struct Measured {
    std::vector<double> sums;          // objective_sums_, over all ranks
    std::vector<std::int64_t> counts;  // as in Load
    void add(const Measured& other);
  };
  Validation validate(ValidationRouting* routing);
  Measured measure(const HeldOut& set, int first_pass, ValidationRouting* routing);
  std::int64_t passes_over(const HeldOut& set) const;
  StepContext context(const Load& load, const DeviceBatch& batch, std::int64_t step, int micro_batch);
  HookContext at_end_of(std::int64_t step) const;
  std::vector<Instr> forward_passes(int micro_batches) const;

  Plan& plan_;
  Stream& stream_;
  const BatchSource& source_;
  Teacher* teacher_;
  const Objectives objectives_;
  const std::vector<BatchShare> shares_;  // by the size of the batch
  int micro_batches_ = 0;                 // of the step that began last; 0: none has
  Group& ranks_;  // that train one model, for norms and sums: all of them unless workers are independent
  Group& world_;
  Group& tokens_;  // of these, the ranks that split tokens
  std::unique_ptr<Model> model_;
  RoutingMeter routing_;
  std::optional<ValidationRouting> validated_;  // once it was asked for
  GradientNorm norm_;
  OptimizerStep optimizer_;
  Executor executor_;
  Observers observers_;
  StepReport last_;               // of gradients()
  std::int64_t passed_over_ = 0;  // steps in a row, up to the last one that was reported
  std::deque<Begun> begun_;
  std::int64_t enqueued_ = -1;  // the step whose gradients are there
  std::optional<ReadAhead> ahead_;
  StepSums sums_;
  std::unique_ptr<Stream> beside_;  // StepSums::beside, where the main stream works behind the host
  Tensor sum_storage_;              // f64: those of the objectives, then balance and z
  Tensor objective_sums_;           // of these
  Tensor sum_squares_;              // f64 [1]
  Tensor factor_;                   // f32 [1]
  Tensor finite_;                   // f32 [1]: 1, NaN where the step is not finite
  int routed_layers_ = 0;
};

}  // namespace orthant
