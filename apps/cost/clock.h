// A clock for pipelines: when each stage does what, if passes and messages take the times that the caller gives.
//
// Each stage works through its own program in order, as the executor does; a pass begins when what it needs has
// arrived. Messages travel beside the passes.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "core/plan/schedule_check.h"

namespace orthant::cost {

enum class Pass { forward, backward, weights };  // weights: their gradients, where a schedule computes them apart

struct Task {
  Pass pass = Pass::forward;
  int chunk = 0, micro_batch = 0;
  bool operator==(const Task&) const = default;
};

// Programs of all stages. Piece k of the model is chunk k / stages of stage k % stages.
struct PipelineProgram {
  int stages = 1, chunks = 1, micro_batches = 1;
  std::vector<std::vector<Task>> of_stage;
  bool in_two = false;  // there are tasks of Pass::weights
};

// The executor's own programs (Schedule::steps), for the clock.
PipelineProgram program_of(const Programs& programs);

// Published schedules, for layouts that no plugin has been asked for yet. The first three give the tasks that the
// `pipeline` axis executes. REQUIRES: positive sizes; interleaved: micro_batches % stages == 0.
PipelineProgram gpipe(int stages, int micro_batches);
PipelineProgram one_forward_one_backward(int stages, int micro_batches);
PipelineProgram interleaved(int stages, int chunks, int micro_batches);
// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024): as 1F1B, with the weights' part of a backward pass
// put off into the gaps; no stage keeps more micro-batches than the first one of 1F1B.
PipelineProgram zero_bubble(int stages, int micro_batches);

// Seconds of a pass of a piece for a micro-batch. Called once for every task.
using Duration = std::function<double(Pass pass, int piece, int micro_batch)>;

// The same where all micro-batches take as long: [pass][piece]. A clock reads it several times as fast.
using PieceDurations = std::array<std::vector<double>, 3>;

struct Slot {
  Task task;
  double begin = 0, end = 0;
};

struct ClockResult {
  double seconds = 0;                       // until all stages are done
  std::vector<double> busy;                 // of each stage, s
  std::vector<int> kept;                    // of each stage: the most micro-batches between forward and backward
  std::vector<std::vector<Slot>> timeline;  // of each stage; empty unless asked for
  // How often each task of a piece lies on the chain of tasks that decides `seconds`: [pass][piece]; and its messages.
  std::vector<std::vector<double>> critical;
  double critical_messages = 0;
};

// message: s from a stage to its neighbour. Errors: Error for programs that wait for ever.
ClockResult run_clock(const PipelineProgram& program, const Duration& duration, double message, bool timeline = false);
ClockResult run_clock(const PipelineProgram& program, const PieceDurations& durations, double message);

}  // namespace orthant::cost
