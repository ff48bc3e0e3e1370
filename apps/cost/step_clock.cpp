#include <algorithm>
#include <cmath>

#include "apps/cost/step_time.h"

namespace orthant::cost {
namespace {

constexpr int played_rounds = 3;  // of one micro-batch a stage, before a schedule repeats itself

int whole_micro_batches(const Layout& layout) {
  const int count = std::max(1, static_cast<int>(std::ceil(layout.micro_batches() - 1e-9)));
  const int round = layout.chunks > 1 ? layout.pipeline : 1;
  return (count + round - 1) / round * round;
}

}  // namespace

PipelineProgram published_programs(const Layout& layout, int micro_batches) {
  if (layout.zero_bubble) {
    return zero_bubble(layout.pipeline, micro_batches);
  }
  if (layout.all_at_once) {
    return gpipe(layout.pipeline, micro_batches);
  }
  return layout.chunks > 1 ? interleaved(layout.pipeline, layout.chunks, micro_batches)
                           : one_forward_one_backward(layout.pipeline, micro_batches);
}

StepClock::StepClock(const Layout& layout, bool whole, const MakePrograms& programs) {
  const int count = whole_micro_batches(layout), round = layout.pipeline;
  const int played = whole || count <= (played_rounds + 1) * round ? count : count % round + played_rounds * round;
  program_ = programs(layout, played);
  if (played < count) {
    shorter_ = programs(layout, played - round);
    periods_ = static_cast<double>(count - played) / round;
  }
  scale_ = layout.micro_batches() / count;
}

ClockResult StepClock::played(const std::function<ClockResult(const PipelineProgram&)>& play) const {
  ClockResult result = play(program_);
  if (periods_ > 0) {
    const ClockResult shorter = play(shorter_);
    const auto go_on = [&](double& value, double before) { value += periods_ * (value - before); };
    go_on(result.seconds, shorter.seconds);
    go_on(result.critical_messages, shorter.critical_messages);
    for (std::size_t i = 0; i < result.busy.size(); ++i) {
      go_on(result.busy[i], shorter.busy[i]);
    }
    for (std::size_t pass = 0; pass < result.critical.size(); ++pass) {
      for (std::size_t i = 0; i < result.critical[pass].size(); ++i) {
        go_on(result.critical[pass][i], shorter.critical[pass][i]);
      }
    }
  }
  result.seconds *= scale_;
  result.critical_messages *= scale_;
  for (std::vector<double>& pass : result.critical) {
    for (double& count : pass) {
      count *= scale_;
    }
  }
  for (double& busy : result.busy) {
    busy *= scale_;
  }
  return result;
}

ClockResult StepClock::run(const Duration& duration, double message) const {
  return played([&](const PipelineProgram& program) { return run_clock(program, duration, message); });
}

ClockResult StepClock::run(const PieceDurations& durations, double message) const {
  return played([&](const PipelineProgram& program) { return run_clock(program, durations, message); });
}

ClockResult StepClock::run(const PieceDurations& durations, double message, const Play& play) const {
  return played([&](const PipelineProgram& program) { return play(program, durations, message); });
}

}  // namespace orthant::cost
