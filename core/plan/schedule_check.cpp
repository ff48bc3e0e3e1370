#include "core/plan/schedule_check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace orthant {

const char* name_of(Op op) {
  switch (op) {
    case Op::load: return "load";
    case Op::recv_x: return "recv_x";
    case Op::forward: return "forward";
    case Op::send_x: return "send_x";
    case Op::recv_dx: return "recv_dx";
    case Op::backward: return "backward";
    case Op::send_dx: return "send_dx";
    case Op::finish_grads: return "finish_grads";
  }
  return "?";
}

Programs programs_of(const Schedule& schedule, int stages, int chunks, int micro_batches) {
  Programs programs{stages, chunks, micro_batches, {}};
  for (int stage = 0; stage < stages; ++stage) {
    programs.of_stage.push_back(schedule.steps(stage, stages, micro_batches));
  }
  return programs;
}

namespace {

using Unit = std::pair<int, int>;  // piece or chunk, and micro-batch

// Plays all programs side by side: each stage goes on until it must wait for a message. `run(stage, instr, ready)` is
// told of each forward and backward, and when what it needs was there; it returns when its result is.
class Player {
 public:
  explicit Player(const Programs& programs)
      : programs_(programs), at_(programs.of_stage.size(), 0), states_(programs.of_stage.size()) {}

  template <class Run>
  void play(Run run) {
    require(programs_.of_stage.size() == static_cast<std::size_t>(programs_.stages), "{} programs for {} stages",
            programs_.of_stage.size(), programs_.stages);
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < programs_.stages; ++stage) {
        std::size_t& at = at_[stage];
        const std::vector<Instr>& program = programs_.of_stage[stage];
        while (at < program.size() && perform(stage, program[at], run)) {
          ++at;
          moved = true;
        }
      }
    }
    for (int stage = 0; stage < programs_.stages; ++stage) {
      finish(stage);
    }
  }

 private:
  struct Message {
    Unit for_unit;
    int ready;
  };
  struct State {
    std::set<int> loaded;
    std::map<Unit, int> x, dy, y, dx;  // by (piece, micro-batch): from when on what was received or made is there
    std::set<Unit> went_forward, went_backward;
    std::deque<Message> x_box, dy_box;
    int finished = 0;
  };

  int pieces() const { return programs_.stages * programs_.chunks; }
  State& state(int stage) { return states_[stage]; }

  template <class... Args>
  [[noreturn]] void refuse(int stage, const Instr& instr, fmt::format_string<Args...> format, Args&&... args) const {
    fail("the schedule for {} stages and {} micro-batches is wrong: stage {}, {} of chunk {}, micro-batch {}: {}",
         programs_.stages, programs_.micro_batches, stage, name_of(instr.op), instr.chunk, instr.micro_batch,
         fmt::format(format, std::forward<Args>(args)...));
  }

  int take(std::map<Unit, int>& from, Unit unit, int stage, const Instr& instr, const char* what) {
    auto node = from.extract(unit);
    if (node.empty()) {
      refuse(stage, instr, "{} is not there", what);
    }
    return node.mapped();
  }

  // False: it has to wait.
  template <class Run>
  bool perform(int stage, const Instr& instr, Run& run) {
    State& own = state(stage);
    if (instr.op == Op::finish_grads) {
      if (++own.finished > 1) {
        refuse(stage, instr, "out of order");
      }
      return true;
    }
    const int m = instr.micro_batch, piece = instr.chunk * programs_.stages + stage;
    if (instr.chunk < 0 || instr.chunk >= programs_.chunks || m < 0 || m >= programs_.micro_batches) {
      refuse(stage, instr, "there is none");
    }
    if (own.finished > 0) {
      refuse(stage, instr, "after finish_grads");
    }
    if (instr.op == Op::load) {
      own.loaded.insert(m);
      return true;
    }
    const bool first = piece == 0, last = piece == pieces() - 1, alone = programs_.stages == 1;
    const Unit unit{piece, m};
    const bool towards_head = instr.op == Op::recv_x || instr.op == Op::send_x || instr.op == Op::forward;
    const bool no_neighbour = alone || ((instr.op == Op::recv_x || instr.op == Op::send_dx) ? first : last);
    switch (instr.op) {
      case Op::recv_x:
      case Op::recv_dx: {
        std::deque<Message>& box = towards_head ? own.x_box : own.dy_box;
        if (no_neighbour) {
          refuse(stage, instr, "it comes from no other stage");
        }
        if (box.empty()) {
          return false;
        }
        if (box.front().for_unit != unit) {
          refuse(stage, instr, "what arrives is for piece {}, micro-batch {}", box.front().for_unit.first,
                 box.front().for_unit.second);
        }
        (towards_head ? own.x : own.dy)[unit] = box.front().ready;
        box.pop_front();
        return true;
      }
      case Op::send_x:
      case Op::send_dx: {
        if (no_neighbour) {
          refuse(stage, instr, "it goes to no other stage");
        }
        const int to = piece + (towards_head ? 1 : -1);
        State& other = state(to % programs_.stages);
        (towards_head ? other.x_box : other.dy_box)
            .push_back({{to, m}, take(towards_head ? own.y : own.dx, unit, stage, instr, "what it sends")});
        return true;
      }
      case Op::forward: {
        if (!own.loaded.contains(m)) {
          refuse(stage, instr, "the micro-batch is not loaded");
        }
        if (!own.went_forward.insert(unit).second) {
          refuse(stage, instr, "a second time");
        }
        const int done = run(stage, instr, first ? 0 : take(own.x, unit, stage, instr, "its input"));
        if (!last) {
          alone ? own.x[{piece + 1, m}] = done : own.y[unit] = done;
        }
        return true;
      }
      default: {
        if (!own.went_forward.contains(unit) || !own.went_backward.insert(unit).second) {
          refuse(stage, instr, "{}", own.went_forward.contains(unit) ? "a second time" : "before its forward");
        }
        const int done = run(stage, instr, last ? 0 : take(own.dy, unit, stage, instr, "its gradient"));
        if (!first) {
          alone ? own.dy[{piece - 1, m}] = done : own.dx[unit] = done;
        }
        return true;
      }
    }
  }

  void finish(int stage) {
    const std::vector<Instr>& program = programs_.of_stage[stage];
    const std::size_t at = at_[stage];
    if (at < program.size()) {
      refuse(stage, program[at], "waits forever");
    }
    const State& own = states_[stage];
    const Instr none{Op::finish_grads, 0, 0};
    const std::size_t units =
        static_cast<std::size_t>(programs_.chunks) * static_cast<std::size_t>(programs_.micro_batches);
    if (own.went_forward.size() != units || own.went_backward.size() != units) {
      refuse(stage, none, "{} of {} forwards and {} backwards were done", own.went_forward.size(), units,
             own.went_backward.size());
    }
    if (!own.x_box.empty() || !own.dy_box.empty() || !own.y.empty() || !own.dx.empty()) {
      refuse(stage, none, "something was not sent, or not received");
    }
    if (own.finished != 1) {
      refuse(stage, none, "finish_grads is missing");
    }
  }

  const Programs& programs_;
  std::vector<std::size_t> at_;
  std::vector<State> states_;
};

}  // namespace

void check_programs(const Programs& programs) {
  Player(programs).play([](int, const Instr&, int) { return 0; });
}

double Timeline::bubble() const {
  std::int64_t busy = 0;
  for (const std::vector<TimeSlot>& stage : of_stage) {
    for (const TimeSlot& slot : stage) {
      busy += slot.end - slot.begin;
    }
  }
  const std::int64_t all = static_cast<std::int64_t>(of_stage.size()) * length;
  return busy == 0 ? 0 : static_cast<double>(all - busy) / static_cast<double>(busy);
}

Timeline timeline_of(const Programs& programs, int forward_slots, int backward_slots) {
  Timeline timeline;
  timeline.of_stage.resize(programs.of_stage.size());
  timeline.peak.assign(programs.of_stage.size(), 0);
  std::vector<int> in_flight(programs.of_stage.size(), 0);
  Player(programs).play([&](int stage, const Instr& instr, int ready) {
    const std::size_t s = static_cast<std::size_t>(stage);
    std::vector<TimeSlot>& slots = timeline.of_stage[s];
    const int begin = std::max(ready, slots.empty() ? 0 : slots.back().end);
    const bool forward = instr.op == Op::forward;
    slots.push_back({instr, begin, begin + (forward ? forward_slots : backward_slots)});
    in_flight[s] += forward ? 1 : -1;
    timeline.peak[s] = std::max(timeline.peak[s], in_flight[s]);
    timeline.length = std::max(timeline.length, slots.back().end);
    return slots.back().end;
  });
  return timeline;
}

std::vector<Instr> forward_program(int stage, int stages, int chunks, int micro_batches) {
  std::vector<Instr> program;
  for (int begin = 0; begin < micro_batches; begin += stages) {
    const int end = std::min(begin + stages, micro_batches);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int piece = chunk * stages + stage;
      for (int m = begin; m < end; ++m) {
        if (chunk == 0) {
          program.push_back({Op::load, 0, m});
        }
        if (stages > 1 && piece > 0) {
          program.push_back({Op::recv_x, chunk, m});
        }
        program.push_back({Op::forward, chunk, m});
        if (stages > 1 && piece < stages * chunks - 1) {
          program.push_back({Op::send_x, chunk, m});
        }
      }
    }
  }
  return program;
}

}  // namespace orthant
