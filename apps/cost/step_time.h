// How long a training step takes in a layout on a machine: the passes of a block, the pipeline's programs on the clock,
// gradients and updates behind them. The room's front door; begin here.
//
//   const Machine machine = load_machine("configs/machines/h100.toml");
//   const Practice practice = load_factors("configs/machines/factors.toml").practice;
//   const StepTime time = step_time(model, layout, machine, practice);
//   fmt::print("{:.2f} s, of which {:.2f} s waiting\n", time.seconds, time.waiting);
//
// A search over layouts keeps a StepClock for each (stages, chunks, micro-batches, schedule): the programs are built
// once.
//
// Thread safety: pure functions; a StepClock is read-only after it was made.
#pragma once

#include "apps/cost/clock.h"
#include "apps/cost/machine.h"
#include "apps/cost/model_shape.h"
#include "apps/cost/operations.h"

namespace orthant::cost {

// Seconds of a step, and what they are spent on. The parts add up to `seconds`.
struct StepTime {
  double seconds = 0;
  PassSeconds work;      // of the stage that works longest, all its micro-batches
  double waiting = 0;    // for other stages
  double messages = 0;   // between stages, where somebody waits for them
  double gather = 0;     // of weights, not hidden (ZeRO stage 3)
  double uneven = 0;     // of the busiest rank, beyond the mean of a recorded routing
  double gradients = 0;  // of gradients and weights after the passes, not hidden
  double update = 0;     // of the optimizer
  double shared = 0;     // for cores that other ranks are at work on
  double host = 0;       // between steps
};

// Programs for a layout's stages and so many micro-batches.
using MakePrograms = std::function<PipelineProgram(const Layout& layout, int micro_batches)>;
PipelineProgram published_programs(const Layout& layout, int micro_batches);

// The programs of a layout, cut to as many micro-batches as decide a step's course; the rest repeats.
class StepClock {
 public:
  // whole: all micro-batches are played, for durations that depend on them.
  explicit StepClock(const Layout& layout, bool whole = false, const MakePrograms& programs = published_programs);
  // Like run_clock() of all micro-batches; tasks on the chain that decides are in `critical`. REQUIRES: durations that
  // do not depend on the micro-batch, where there are more micro-batches than are played.
  ClockResult run(const Duration& duration, double message) const;
  ClockResult run(const PieceDurations& durations, double message) const;
  // The same by another clock of the same form.
  using Play = std::function<ClockResult(const PipelineProgram&, const PieceDurations&, double message)>;
  ClockResult run(const PieceDurations& durations, double message, const Play& play) const;
  int pieces() const { return program_.stages * program_.chunks; }

 private:
  ClockResult played(const std::function<ClockResult(const PipelineProgram&)>& play) const;

  PipelineProgram program_, shorter_;  // one period less
  double periods_ = 0;                 // that are not played
  double scale_ = 1;                   // micro-batches of the batch over those of the programs
};

// Errors: Error where sizes do not divide each other, naming them: ranks by axes, experts, blocks by pieces, or a
// number that is not above 0.
void check_layout(const ModelShape& model, const Layout& layout);

// REQUIRES: what check_layout() accepts. A batch that is no multiple of data * micro_batch is taken in proportion.
StepTime step_time(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                   const Routing& routing = {});
StepTime step_time(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                   const Routing& routing, const StepClock& clock);

// What no step takes less than, without a clock: the stage that works longest, what must be over before it can begin
// and what must follow its last task; gradients, update and host as step_time() has them. Proof: docs/guides/search.md.
// REQUIRES: as step_time(); a schedule whose stages all end with a backward pass of their first chunk, as all but
// zero_bubble do.
double step_bound(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                  const Routing& routing = {});

// What each pass of each piece takes for a micro-batch, and a message from stage to stage, s: for a picture of who
// works when.
struct PassTimes {
  PieceDurations passes;
  double message = 0;
};
PassTimes pass_times(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice);

// Blocks of each piece so that the first and the last, which have the embedding, the head and the blocks of multi-token
// prediction too, take as long as others.
std::vector<int> balanced_blocks(const ModelShape& model, const Layout& layout, const Machine& machine,
                                 const Practice& practice);

// The chain of tasks that decides how long a step takes. Near the machine that it was found for, a step's time is the
// sum along it: what a fit or a sensitivity asks many times costs no clock.
ClockResult step_course(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                        const StepClock& clock);
double seconds_along(const ClockResult& course, const ModelShape& model, const Layout& layout, const Machine& machine,
                     const Practice& practice);

// FLOPs of a step as published figures count them: 6 a parameter and token, and the scores of attention; without what
// is computed again. causal: half of the scores.
double model_flops(const ModelShape& model, double sequences, bool causal);

}  // namespace orthant::cost
