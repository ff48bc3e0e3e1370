#include "apps/cost/shared_cores.h"

#include <algorithm>
#include <limits>

#include <orthant/error.h>

namespace orthant::cost {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// One stage at a moment.
struct Worker {
  std::size_t at = 0;  // its task
  double left = 0;     // of that task's work, s
  bool working = false;
  double arrives = never;  // when what the task needs is there; never: nobody has finished it
};

class SharedClock {
 public:
  SharedClock(const PipelineProgram& program, const PieceDurations& durations, double message, double ranks,
              const Cores& cores)
      : program_(program),
        durations_(durations),
        message_(message),
        ranks_(ranks),
        cores_(cores),
        pieces_(program.stages * program.chunks),
        ended_(3 * static_cast<std::size_t>(pieces_) * static_cast<std::size_t>(program.micro_batches), never),
        workers_(program.of_stage.size()) {}

  ClockResult run() {
    ClockResult result;
    result.busy.assign(workers_.size(), 0);
    result.kept.assign(workers_.size(), 0);
    result.critical.assign(3, std::vector<double>(static_cast<std::size_t>(pieces_), 0));
    std::vector<int> held(workers_.size(), 0);
    for (;;) {
      double at_work = 0;
      for (std::size_t stage = 0; stage < workers_.size(); ++stage) {
        begin(stage);
        at_work += workers_[stage].working ? ranks_ : 0;
      }
      const double slow = slowdown(cores_, at_work);
      double next = never;
      for (std::size_t stage = 0; stage < workers_.size(); ++stage) {
        const Worker& worker = workers_[stage];
        next = std::min(next, worker.working ? now_ + worker.left * slow : worker.arrives);
      }
      if (next == never) {
        break;
      }
      const double passed = next - now_;
      now_ = next;
      for (std::size_t stage = 0; stage < workers_.size(); ++stage) {
        Worker& worker = workers_[stage];
        if (!worker.working) {
          continue;
        }
        result.busy[stage] += passed;
        worker.left -= passed / slow;
        constexpr double nothing = 1e-15;
        if (worker.left <= nothing) {
          const Task& task = program_.of_stage[stage][worker.at];
          ended(task, stage) = now_;
          held[stage] += task.pass == Pass::forward ? 1 : task.pass == Pass::backward ? -1 : 0;
          result.kept[stage] = std::max(result.kept[stage], held[stage]);
          worker.working = false;
          ++worker.at;
        }
      }
    }
    for (std::size_t stage = 0; stage < workers_.size(); ++stage) {
      require(workers_[stage].at == program_.of_stage[stage].size(),
              "the programs wait for ever: stage {} stops before task {} of {}", stage, workers_[stage].at,
              program_.of_stage[stage].size());
    }
    result.seconds = now_;
    return result;
  }

 private:
  int piece_of(const Task& task, std::size_t stage) const {
    return task.chunk * program_.stages + static_cast<int>(stage);
  }

  double& ended(Pass pass, int piece, int micro_batch) {
    const int place = (static_cast<int>(pass) * pieces_ + piece) * program_.micro_batches + micro_batch;
    return ended_[static_cast<std::size_t>(place)];
  }
  double& ended(const Task& task, std::size_t stage) {
    return ended(task.pass, piece_of(task, stage), task.micro_batch);
  }

  // When what the task needs is there.
  double arrival(const Task& task, std::size_t stage) {
    const int piece = piece_of(task, stage), m = task.micro_batch;
    const double travel = program_.stages > 1 ? message_ : 0;
    switch (task.pass) {
      case Pass::forward: return piece == 0 ? 0 : ended(Pass::forward, piece - 1, m) + travel;
      case Pass::backward:
        return piece == pieces_ - 1 ? ended(Pass::forward, piece, m) : ended(Pass::backward, piece + 1, m) + travel;
      case Pass::weights: return ended(Pass::backward, piece, m);
    }
    return never;
  }

  // Sets a stage that rests to its next task, where it can.
  void begin(std::size_t stage) {
    Worker& worker = workers_[stage];
    if (worker.working) {
      return;
    }
    worker.arrives = never;
    if (worker.at == program_.of_stage[stage].size()) {
      return;
    }
    const Task& task = program_.of_stage[stage][worker.at];
    const double arrives = arrival(task, stage);
    if (arrives <= now_) {
      worker.working = true;
      worker.left = durations_[static_cast<std::size_t>(task.pass)][static_cast<std::size_t>(piece_of(task, stage))];
    } else {
      worker.arrives = arrives;
    }
  }

  const PipelineProgram& program_;
  const PieceDurations& durations_;
  const double message_, ranks_;
  const Cores& cores_;
  const int pieces_;
  std::vector<double> ended_;
  std::vector<Worker> workers_;
  double now_ = 0;
};

}  // namespace

double slowdown(const Cores& cores, double ranks) {
  if (cores.count <= 0 || ranks <= 1) {
    return 1;
  }
  const double at_work = std::min<double>(ranks, cores.count);
  const double rate = cores.count == 1 ? 1 : 1 - (1 - cores.together) * (at_work - 1) / (cores.count - 1);
  return std::max(1.0, ranks / cores.count) / rate;
}

ClockResult run_shared_clock(const PipelineProgram& program, const PieceDurations& durations, double message,
                             double ranks, const Cores& cores) {
  return SharedClock(program, durations, message, ranks, cores).run();
}

}  // namespace orthant::cost
