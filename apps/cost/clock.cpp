#include "apps/cost/clock.h"

#include <algorithm>
#include <array>
#include <limits>

#include <orthant/error.h>

namespace orthant::cost {
namespace {

constexpr double not_yet = -1;
constexpr std::int32_t none = -1;

struct Played {
  double end = not_yet;
  std::int32_t before = none;  // the task that it waited for
  bool by_message = false;
};

template <class Durations>
class Clock {
 public:
  Clock(const PipelineProgram& program, const Durations& duration, double message)
      : program_(program),
        duration_(duration),
        message_(message),
        pieces_(program.stages * program.chunks),
        played_(static_cast<std::size_t>(program.in_two ? 3 : 2) * pieces_ * program.micro_batches) {}

  ClockResult run(bool timeline) {
    const std::size_t stages = program_.of_stage.size();
    ClockResult result;
    result.busy.assign(stages, 0);
    result.kept.assign(stages, 0);
    result.timeline.resize(timeline ? stages : 0);
    std::vector<std::size_t> at(stages, 0);
    std::vector<std::int32_t> last(stages, none);
    std::vector<int> held(stages, 0);
    std::int32_t latest = none;
    // Forward passes go up the stages and backward passes down: looked at in turns, both find the next stage waiting.
    for (bool up = true, moved = true; moved; up = !up) {
      moved = false;
      for (std::size_t i = 0; i < stages; ++i) {
        const std::size_t stage = up ? i : stages - 1 - i;
        const std::vector<Task>& tasks = program_.of_stage[stage];
        while (at[stage] < tasks.size() && perform(static_cast<int>(stage), tasks[at[stage]], last[stage])) {
          const Task& task = tasks[at[stage]];
          const Played& done = played_[last[stage]];
          result.busy[stage] += length_;
          held[stage] += task.pass == Pass::forward ? 1 : task.pass == Pass::backward ? -1 : 0;
          result.kept[stage] = std::max(result.kept[stage], held[stage]);
          if (timeline) {
            result.timeline[stage].push_back({task, done.end - length_, done.end});
          }
          if (latest == none || done.end > played_[latest].end) {
            latest = last[stage];
          }
          ++at[stage];
          moved = true;
        }
      }
    }
    for (std::size_t stage = 0; stage < stages; ++stage) {
      require(at[stage] == program_.of_stage[stage].size(),
              "the programs wait for ever: stage {} stops before task {} of {}", stage, at[stage],
              program_.of_stage[stage].size());
    }
    follow(latest, result);
    return result;
  }

 private:
  std::int32_t index(Pass pass, int piece, int micro_batch) const {
    return (static_cast<int>(pass) * pieces_ + piece) * program_.micro_batches + micro_batch;
  }

  // False: what it needs is not there yet.
  bool perform(int stage, const Task& task, std::int32_t& last) {
    const int piece = task.chunk * program_.stages + stage, m = task.micro_batch;
    std::int32_t needed = none;
    bool from_stage = false;
    if (task.pass == Pass::forward && piece > 0) {
      needed = index(Pass::forward, piece - 1, m);
      from_stage = program_.stages > 1;
    } else if (task.pass == Pass::backward) {
      const bool end = piece == pieces_ - 1;
      needed = end ? index(Pass::forward, piece, m) : index(Pass::backward, piece + 1, m);
      from_stage = !end && program_.stages > 1;
    } else if (task.pass == Pass::weights) {
      needed = index(Pass::backward, piece, m);
    }
    double begin = 0;
    Played& own = played_[index(task.pass, piece, m)];
    if (needed != none) {
      if (played_[needed].end == not_yet) {
        return false;
      }
      begin = played_[needed].end + (from_stage ? message_ : 0);
      own.before = needed;
      own.by_message = from_stage;
    }
    if (last != none && played_[last].end >= begin) {
      begin = played_[last].end;
      own.before = last;
      own.by_message = false;
    }
    length_ = duration_(task.pass, piece, m);
    own.end = begin + length_;
    last = index(task.pass, piece, m);
    return true;
  }

  void follow(std::int32_t latest, ClockResult& result) const {
    result.critical.assign(3, std::vector<double>(static_cast<std::size_t>(pieces_), 0));
    if (latest == none) {
      return;
    }
    result.seconds = played_[latest].end;
    for (std::int32_t task = latest; task != none; task = played_[task].before) {
      const int unit = task / program_.micro_batches;
      result.critical[unit / pieces_][unit % pieces_] += 1;
      result.critical_messages += played_[task].by_message ? 1 : 0;
    }
  }

  const PipelineProgram& program_;
  const Durations& duration_;
  const double message_;
  const int pieces_;
  std::vector<Played> played_;
  double length_ = 0;
};

template <class OfStage>
PipelineProgram program_by_stage(int stages, int chunks, int micro_batches, OfStage of_stage) {
  PipelineProgram program{stages, chunks, micro_batches, {}, false};
  for (int stage = 0; stage < stages; ++stage) {
    program.of_stage.push_back(of_stage(stage));
  }
  return program;
}

// Forwards in front of the first backward, then both in turn: task(pass, i) is the i-th of its kind.
template <class MakeTask>
std::vector<Task> in_turn(int ahead, int count, MakeTask task) {
  std::vector<Task> tasks;
  tasks.reserve(2 * static_cast<std::size_t>(count));
  for (int i = 0; i < ahead; ++i) {
    tasks.push_back(task(Pass::forward, i));
  }
  for (int i = 0; i < count; ++i) {
    if (ahead + i < count) {
      tasks.push_back(task(Pass::forward, ahead + i));
    }
    tasks.push_back(task(Pass::backward, i));
  }
  return tasks;
}

}  // namespace

PipelineProgram program_of(const Programs& programs) {
  PipelineProgram program{programs.stages, programs.chunks, programs.micro_batches, {}, false};
  for (const std::vector<Instr>& instructions : programs.of_stage) {
    std::vector<Task> tasks;
    for (const Instr& instr : instructions) {
      if (instr.op == Op::forward || instr.op == Op::backward) {
        tasks.push_back({instr.op == Op::forward ? Pass::forward : Pass::backward, instr.chunk, instr.micro_batch});
      }
    }
    program.of_stage.push_back(std::move(tasks));
  }
  return program;
}

PipelineProgram gpipe(int stages, int micro_batches) {
  return program_by_stage(stages, 1, micro_batches, [&](int) {
    std::vector<Task> tasks;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (int m = 0; m < micro_batches; ++m) {
        tasks.push_back({pass, 0, m});
      }
    }
    return tasks;
  });
}

PipelineProgram one_forward_one_backward(int stages, int micro_batches) {
  return program_by_stage(stages, 1, micro_batches, [&](int stage) {
    return in_turn(std::min(stages - 1 - stage, micro_batches), micro_batches, [](Pass pass, int i) {
      return Task{pass, 0, i};
    });
  });
}

PipelineProgram interleaved(int stages, int chunks, int micro_batches) {
  return program_by_stage(stages, chunks, micro_batches, [&](int stage) {
    const int count = chunks * micro_batches, round = stages * chunks;
    const int ahead = std::min(2 * (stages - 1 - stage) + (chunks - 1) * stages, count);
    return in_turn(ahead, count, [&](Pass pass, int i) {
      const int chunk = i % round / stages;
      return Task{pass, pass == Pass::forward ? chunk : chunks - 1 - chunk, i / round * stages + i % stages};
    });
  });
}

PipelineProgram zero_bubble(int stages, int micro_batches) {
  PipelineProgram program = program_by_stage(stages, 1, micro_batches, [&](int stage) {
    std::vector<Task> tasks;
    const int ahead = std::min(stages - 1 - stage, micro_batches), put_off = std::min(stage, micro_batches);
    for (int m = 0; m < ahead; ++m) {
      tasks.push_back({Pass::forward, 0, m});
    }
    for (int m = 0; m < micro_batches; ++m) {
      if (ahead + m < micro_batches) {
        tasks.push_back({Pass::forward, 0, ahead + m});
      }
      tasks.push_back({Pass::backward, 0, m});
      if (m >= put_off) {
        tasks.push_back({Pass::weights, 0, m - put_off});
      }
    }
    for (int m = micro_batches - put_off; m < micro_batches; ++m) {
      tasks.push_back({Pass::weights, 0, m});
    }
    return tasks;
  });
  program.in_two = true;
  return program;
}

ClockResult run_clock(const PipelineProgram& program, const Duration& duration, double message, bool timeline) {
  return Clock<Duration>(program, duration, message).run(timeline);
}

ClockResult run_clock(const PipelineProgram& program, const PieceDurations& durations, double message) {
  const auto read = [&](Pass pass, int piece, int) {
    return durations[static_cast<std::size_t>(pass)][static_cast<std::size_t>(piece)];
  };
  return Clock<decltype(read)>(program, read, message).run(false);
}

}  // namespace orthant::cost
