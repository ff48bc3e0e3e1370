// StepRunner: the steps of a run one after another, so that the device need not wait for the host between two of them.
//
// Where the trainer's reports may come late, the next step is enqueued before the host waits for the report of this
// one; else the next batch is read meanwhile, where the device runs behind the host.
#pragma once

#include <orthant/device.h>

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <optional>

#include "core/train/trainer.h"

namespace orthant {

// Thread safety: one per rank; not shared.
class StepRunner {
 public:
  struct Rules {
    std::function<void(std::int64_t step)> before;    // called before a step begins
    std::function<bool(std::int64_t step)> measures;  // whether its routing is measured
    // Whether the host looks at the model, or may end the run, between this step and the next: that one waits then.
    std::function<bool(std::int64_t step)> looks_after;
  };
  struct Done {
    StepReport report;
    // Since the step before was done, or since this one began, which is later; where the host is slower than the
    // device, until it began the next one.
    double seconds = 0;
    std::optional<BytesByKind>
        peak;  // of tensors up to this step, where the next has begun; else it is to be asked for
  };

  // All references outlive it.
  StepRunner(Trainer& trainer, Device& device, Stream& stream, const Settings& settings, Rules rules);

  // Does step `step`: the one after the last call's. Errors: those of Trainer::step. What hinders the next step, which
  // was to begin meanwhile, is thrown by the next call, so that this one's report is not lost.
  Done next(std::int64_t step);
  // No step is under way, and none has failed half way: weights are those after the last call's step.
  bool idle() const { return began_.empty() && failure_ == nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  void begin(std::int64_t step);
  void begin_behind(std::int64_t step);

  Trainer& trainer_;
  Device& device_;
  Stream& stream_;
  const Settings& settings_;
  const Rules rules_;
  const bool late_;
  std::deque<Clock::time_point> began_;  // of the steps under way
  Clock::time_point done_;
  std::exception_ptr failure_;
};

}  // namespace orthant
