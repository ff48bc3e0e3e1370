#include "core/run/step_runner.h"

#include <algorithm>
#include <utility>

#include "core/trace/tracing_stream.h"

namespace orthant {

// A trace shows steps apart.
StepRunner::StepRunner(Trainer& trainer, Device& device, Stream& stream, const Settings& settings, Rules rules)
    : trainer_(trainer),
      device_(device),
      stream_(stream),
      settings_(settings),
      rules_(std::move(rules)),
      late_(trainer.reports_late() && settings.run.trace == 0) {}

void StepRunner::begin(std::int64_t step) {
  began_.push_back(Clock::now());
  trainer_.begin(step, rules_.measures(step));
}

void StepRunner::begin_behind(std::int64_t step) {
  try {
    rules_.before(step);
    const Phase phase(stream_, "step", {.step = step + 1}, SpanKind::step);
    begin(step);
  } catch (...) {
    failure_ = std::current_exception();
    began_.resize(1);
  }
}

StepRunner::Done StepRunner::next(std::int64_t step) {
  if (failure_ != nullptr) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  Done done;
  bool there = false;
  const bool more = step + 1 < settings_.run.steps;
  if (late_) {
    if (began_.empty()) {
      rules_.before(step);
      const Phase phase(stream_, "step", {.step = step + 1}, SpanKind::step);
      begin(step);
    }
    if (more && !rules_.looks_after(step)) {
      done.peak = device_.memory().peak_kinds;
      begin_behind(step + 1);
    }
    there = trainer_.report_is_there();
    done.report = trainer_.finish();
  } else {
    rules_.before(step);  // a trace begins there, ahead of the step's span
    const Phase phase(stream_, "step", {.step = step + 1}, SpanKind::step);
    begin(step);
    if (more && device_.asynchronous()) {
      trainer_.read_ahead(step + 1);
    }
    done.report = trainer_.finish();
  }
  const Clock::time_point began = began_.front();
  began_.pop_front();
  // A step that was done before the host came to look: the host is the slower, and what a step takes is how often it
  // begins one.
  const Clock::time_point now = there && !began_.empty() ? began_.front() : Clock::now();
  done.seconds = std::chrono::duration<double>(now - std::max(began, done_)).count();
  done_ = now;
  return done;
}

}  // namespace orthant
