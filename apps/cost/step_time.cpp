#include "apps/cost/step_time.h"

#include <algorithm>

#include "apps/cost/shared_cores.h"

namespace orthant::cost {
namespace {

// What hides behind something else: `other` runs beside `seconds`, a part `overlap` of the shorter one for nothing.
double beside(double seconds, double other, double overlap) {
  return std::max(seconds, other) + (1 - overlap) * std::min(seconds, other);
}

// Seconds of each piece's passes.
struct PieceSeconds {
  PassSeconds forward, backward;
  double weights = 0;
  double gathered_forward = 0, gathered_backward = 0;  // ZeRO stage 3
  double more_forward = 0, more_backward = 0;          // for each mean load of experts beyond the mean
  int first_routed = 0, routed = 0;                    // blocks with experts before it, and its own
};

struct Parameters {
  double dense = 0, routed = 0;  // of the largest stage
};

class StepModel {
 public:
  StepModel(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice)
      : model_(model),
        layout_(layout),
        machine_(machine),
        practice_(machine.practice ? *machine.practice : practice),
        dense_group_(group_of(machine, layout.gradient_spans())),
        routed_group_(group_of(machine, layout.expert_data_spans())),
        next_stage_(group_of(machine, 2, layout.stride_of(Axis::pipeline))) {}

  StepTime seconds(const Routing& routing, const StepClock& clock) {
    uneven_micro_batches_ = routing.recorded();
    make_pieces(routing.recorded() ? 1 : imbalance(routing, model_.experts, layout_.expert, 0));
    return summed(course(routing, clock), message_seconds());
  }

  ClockResult course(const Routing& routing, const StepClock& clock) const {
    const bool shared = machine_.cores.count > 0;  // a busy rank's cores are lent by those that wait: the mean counts
    if (!routing.recorded() || shared) {
      const PassTimes times = pass_times();
      return shared ? clock.run(times.passes, times.message,
                                [&](const PipelineProgram& program, const PieceDurations& pieces, double message) {
                                  return run_shared_clock(program, pieces, message, ranks_of_stage(), machine_.cores);
                                })
                    : clock.run(times.passes, times.message);
    }
    const std::vector<std::vector<double>> extra = extra_of(routing);
    const Duration of_micro_batch = [&](Pass pass, int piece, int micro_batch) {
      const auto place = static_cast<std::size_t>(piece);
      return duration(pass, pieces_[place], extra[static_cast<std::size_t>(micro_batch) % extra.size()][place]);
    };
    return clock.run(of_micro_batch, message_seconds());
  }

  PassTimes pass_times() const {
    PassTimes times{{}, message_seconds()};
    for (std::size_t pass = 0; pass < times.passes.size(); ++pass) {
      for (const PieceSeconds& piece : pieces_) {
        times.passes[pass].push_back(duration(static_cast<Pass>(pass), piece, 0));
      }
    }
    return times;
  }

  double bound(const Routing& routing) {
    uneven_micro_batches_ = routing.recorded();
    make_pieces(routing.recorded() ? 1 : imbalance(routing, model_.experts, layout_.expert, 0));
    const double count = layout_.micro_batches(), message = message_seconds();
    // Choices of the busiest rank beyond the mean load: the least of all micro-batches of the step, and their mean.
    std::vector<double> least(pieces_.size(), 0), mean(pieces_.size(), 0);
    if (uneven_micro_batches_) {
      const std::vector<std::vector<double>> extra = extra_of(routing);
      const auto all = static_cast<std::size_t>(count);
      least = extra.front();
      for (std::size_t m = 0; m < all; ++m) {
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
          const double own = extra[m % extra.size()][piece];
          least[piece] = std::min(least[piece], own);
          mean[piece] += own / static_cast<double>(all);
        }
      }
    }
    const auto both = [&](std::size_t piece) {
      return duration(Pass::forward, pieces_[piece], mean[piece]) +
             duration(Pass::backward, pieces_[piece], mean[piece]) + (layout_.zero_bubble ? pieces_[piece].weights : 0);
    };
    const std::size_t stages = static_cast<std::size_t>(layout_.pipeline);
    double around = 0, longest = 0, busiest = 0, last_passes = 0;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      double busy = 0, backward = 0;
      for (std::size_t piece = stage; piece < pieces_.size(); piece += stages) {
        busy += count * both(piece);
        backward += pieces_[piece].backward.total();
      }
      longest = std::max(longest, busy + around);
      if (busy > busiest * (1 + 1e-12)) {
        busiest = busy;
        last_passes = backward;
      }
      around += duration(Pass::forward, pieces_[stage], least[stage]) + message;
      around += layout_.zero_bubble ? 0 : duration(Pass::backward, pieces_[stage], least[stage]) + message;
    }
    // Ranks that share cores are slower for it, or faster by no more than `together`.
    const double fastest = machine_.cores.count > 0 ? std::max(1.0, machine_.cores.together) : 1;
    constexpr double rounding = 1 - 1e-9;
    return rounding / fastest * (longest + gradient_seconds(last_passes) + update_seconds() + practice_.step);
  }

  double along(const ClockResult& course) const {
    double seconds = course.critical_messages * message_seconds();
    for (std::size_t pass = 0; pass < course.critical.size(); ++pass) {
      for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
        if (course.critical[pass][piece] > 0) {
          seconds += course.critical[pass][piece] * duration(static_cast<Pass>(pass), pieces_[piece], 0);
        }
      }
    }
    const std::size_t busiest = busiest_stage(course);
    double last_passes = 0;
    for (std::size_t piece = busiest; piece < pieces_.size(); piece += static_cast<std::size_t>(layout_.pipeline)) {
      last_passes += pieces_[piece].backward.total();
    }
    return seconds + all_at_work() * (gradient_seconds(last_passes) + update_seconds() + practice_.step);
  }

  void make_pieces(double busiest) {
    BlockSeconds dense, routed;
    BlockParameters of_dense, of_routed;
    if (routed_blocks(model_, 0, model_.layers) < model_.layers) {
      dense = block_seconds(model_, layout_, machine_, practice_, false);
      of_dense = block_parameters(model_, layout_, false);
    }
    double more_forward = 0, more_backward = 0;  // s of a pass for each mean load beyond the mean
    if (model_.experts > 0) {
      routed = block_seconds(model_, layout_, machine_, practice_, true, busiest);
      of_routed = block_parameters(model_, layout_, true);
      if (uneven_micro_batches_) {
        const BlockSeconds more = block_seconds(model_, layout_, machine_, practice_, true, 1 + busiest);
        more_forward = more.forward.total() - routed.forward.total();
        more_backward = more.backward.total() - routed.backward.total();
      }
    }
    const BlockSeconds head = head_seconds(model_, layout_, machine_);
    const std::vector<int> blocks = layout_.blocks_of_pieces(model_.layers);
    std::vector<Parameters> held(static_cast<std::size_t>(layout_.pipeline));
    int block = 0;
    for (std::size_t piece = 0; piece < blocks.size(); ++piece) {
      PieceSeconds seconds;
      Parameters own;
      const bool last = piece + 1 == blocks.size();
      const int extra = last ? model_.extra_layers : 0;
      const int count = blocks[piece] + extra;
      seconds.first_routed = routed_blocks(model_, 0, block);
      seconds.routed = routed_blocks(model_, block, count);
      const double with = seconds.routed, without = count - with;
      block += count;
      add(seconds, dense, without);
      add(seconds, routed, with);
      seconds.more_forward = with * more_forward;
      seconds.more_backward = with * more_backward;
      own.dense = without * of_dense.dense + with * of_routed.dense;
      own.routed = with * of_routed.routed;
      if (piece == 0) {
        add(seconds, embedding_seconds(model_, layout_, machine_), 1);
        own.dense += embedding_parameters(model_, layout_);
      }
      if (last) {
        add(seconds, head, 1 + extra);
        own.dense += blocks.size() == 1 && model_.tied ? 0 : embedding_parameters(model_, layout_);
      }
      if (layout_.zero == 3) {
        seconds.gathered_forward = gathered(own);
        seconds.gathered_backward = 2 * seconds.gathered_forward;  // the weights again, and sums of their gradients
      } else if (summed_each()) {
        seconds.gathered_backward = gathered(own) * gradient_bytes() / half_bytes;
      }
      if (layout_.layered) {
        seconds.gathered_forward /= layout_.micro_batches();
        seconds.gathered_backward /= layout_.micro_batches();
      }
      Parameters& stage = held[piece % held.size()];
      stage.dense += own.dense;
      stage.routed += own.routed;
      pieces_.push_back(seconds);
    }
    for (const Parameters& stage : held) {
      if (stage.dense + stage.routed > largest_.dense + largest_.routed) {
        largest_ = stage;
      }
    }
  }

 private:
  // [micro-batch][piece]: the busiest rank's choices over the mean, less one, in the mean of the piece's blocks.
  std::vector<std::vector<double>> extra_of(const Routing& routing) const {
    std::vector<std::vector<double>> extra;
    if (machine_.cores.count > 0) {  // the mean counts
      extra.emplace_back(pieces_.size(), 0);
      return extra;
    }
    for (std::size_t m = 0; m < (routing.busiest.empty() ? routing.load : routing.busiest).size(); ++m) {
      std::vector<double>& of_pieces = extra.emplace_back();
      for (const PieceSeconds& piece : pieces_) {
        double sum = 0;
        if (routing.busiest.empty()) {
          sum = piece.routed * (imbalance(routing, model_.experts, layout_.expert, static_cast<int>(m)) - 1);
        } else {
          const std::vector<double>& layers = routing.busiest[m];
          for (int block = piece.first_routed; block < piece.first_routed + piece.routed; ++block) {
            sum += layers[static_cast<std::size_t>(block) % layers.size()] - 1;
          }
        }
        of_pieces.push_back(piece.routed > 0 ? sum / piece.routed : 0);
      }
    }
    return extra;
  }

  double ranks_of_stage() const { return static_cast<double>(layout_.ranks) / layout_.pipeline; }
  // What ranks that share cores wait for each other while all of them are at work.
  double all_at_work() const { return slowdown(machine_.cores, layout_.ranks); }

  static std::size_t busiest_stage(const ClockResult& result) {
    return static_cast<std::size_t>(std::max_element(result.busy.begin(), result.busy.end()) - result.busy.begin());
  }

  static void add(PieceSeconds& piece, const BlockSeconds& block, double times) {
    piece.forward += block.forward * times;
    piece.backward += block.backward * times;
    piece.weights += block.weights * times;
  }

  // What one stage sends to the next for one micro-batch. Each rank of a tensor group sends its part; unless the next
  // stage wants parts, its ranks gather them (Narayanan et al., SC 2021, section 4.1).
  double message_seconds() const {
    if (layout_.pipeline == 1) {
      return 0;
    }
    const double bytes = layout_.micro_batch * model_.sequence / layout_.context * model_.hidden *
                         machine_.element_bytes(layout_.precision);
    const double sent = send(next_stage_, bytes / layout_.tensor);
    const Group tensor = group_of(machine_, layout_.tensor, layout_.stride_of(Axis::tensor));
    return layout_.sequence_parallel ? sent : sent + all_gather(tensor, bytes);
  }

  double gradient_bytes() const { return layout_.narrow_gradients ? 2 : 4; }
  bool summed_each() const { return layout_.zero == 2 && layout_.sums_each; }

  // Weights of one piece, gathered for one pass.
  double gathered(const Parameters& own) const {
    const auto one = [&](Group group, double parameters) {
      if (layout_.narrow_gradients && group.inner > 1 && group.nodes() > 1) {
        group.far.bandwidth /= group.inner;  // frameworks of that time gather over one rail of a node
      }
      return all_gather(group, machine_.element_bytes(layout_.precision) * parameters);
    };
    return one(dense_group_, own.dense) + one(routed_group_, own.routed);
  }

  // extra: the busiest rank's choices over the mean, less one.
  double duration(Pass pass, const PieceSeconds& piece, double extra) const {
    const bool apart = layout_.zero_bubble;
    switch (pass) {
      case Pass::forward:
        return beside(piece.forward.total() + extra * piece.more_forward, piece.gathered_forward, practice_.overlap);
      case Pass::backward:
        return beside(piece.backward.total() + extra * piece.more_backward - (apart ? piece.weights : 0),
                      piece.gathered_backward, practice_.overlap);
      default: return piece.weights;
    }
  }

  // Gradients' sums after the last backward pass, and weights on their way back; the part that nothing hides.
  double gradient_seconds(double last_passes) const {
    if (layout_.zero == 3) {
      return 0;
    }
    const auto one = [&](const Group& group, double parameters) {
      if (layout_.zero == 0) {
        return all_reduce(group, gradient_bytes() * parameters);
      }
      return (summed_each() ? 0 : reduce_scatter(group, gradient_bytes() * parameters)) +
             all_gather(group, machine_.element_bytes(layout_.precision) * parameters);
    };
    double seconds = one(dense_group_, largest_.dense) + one(routed_group_, largest_.routed);
    if (layout_.overlapped) {
      seconds -= std::min(practice_.overlap * seconds, last_passes);
    }
    if (model_.tied && layout_.pipeline > 1) {  // first and last stage add up their gradients of the one matrix
      seconds += all_reduce(next_stage_, gradient_bytes() * embedding_parameters(model_, layout_));
    }
    return seconds;
  }

  double update_seconds() const {
    // Master weight and two moments read and written, the gradient read twice (for its norm) and cleared, the weight
    // written.
    constexpr double bytes = 38;
    const double shards = layout_.zero > 0 ? dense_group_.size : 1, routed = layout_.zero > 0 ? routed_group_.size : 1;
    const double own = largest_.dense / shards + largest_.routed / routed;
    if (layout_.host_states) {  // gradients go to the host, weights come back
      return own * (4 + half_bytes) / machine_.host.bandwidth + bytes * own / machine_.host.memory_bandwidth;
    }
    return bytes * own / (machine_.memory_bandwidth * machine_.factors.memory);
  }

  StepTime summed(const ClockResult& result, double message) const {
    StepTime time;
    const std::size_t busiest = busiest_stage(result);
    const double micro_batches = layout_.micro_batches();
    double last_passes = 0;
    for (std::size_t piece = busiest; piece < pieces_.size(); piece += static_cast<std::size_t>(layout_.pipeline)) {
      time.work += (pieces_[piece].forward * micro_batches);
      time.work += (pieces_[piece].backward * micro_batches);
      last_passes += pieces_[piece].backward.total();
    }
    const double busy = result.busy[busiest];
    if (machine_.cores.count > 0) {
      time.gather = layout_.zero < 3 && !summed_each() ? 0 : gathered_in_passes(busiest) * micro_batches;
      time.shared = busy - time.work.total() - time.gather;
    } else {
      (uneven_micro_batches_ ? time.uneven : time.gather) = busy - time.work.total();
    }
    if (layout_.zero < 3 && !summed_each() && !uneven_micro_batches_) {
      time.gather = 0;  // rounding
    }
    time.messages = std::min(result.critical_messages * message, result.seconds - busy);
    time.waiting = result.seconds - busy - time.messages;
    time.gradients = gradient_seconds(last_passes);
    time.update = update_seconds();
    time.host = practice_.step;
    time.shared += (all_at_work() - 1) * (time.gradients + time.update + time.host);
    time.seconds = result.seconds + all_at_work() * (time.gradients + time.update + time.host);
    return time;
  }

  // What a stage gathers for one micro-batch, where nothing hides it.
  double gathered_in_passes(std::size_t stage) const {
    double seconds = 0;
    for (std::size_t piece = stage; piece < pieces_.size(); piece += static_cast<std::size_t>(layout_.pipeline)) {
      seconds += duration(Pass::forward, pieces_[piece], 0) + duration(Pass::backward, pieces_[piece], 0) -
                 pieces_[piece].forward.total() - pieces_[piece].backward.total();
    }
    return seconds;
  }

  const ModelShape& model_;
  const Layout& layout_;
  const Machine& machine_;
  const Practice& practice_;
  const Group dense_group_, routed_group_;  // ranks that hold the same parameters
  const Group next_stage_;
  std::vector<PieceSeconds> pieces_;
  bool uneven_micro_batches_ = false;
  Parameters largest_;
};

}  // namespace

StepTime step_time(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                   const Routing& routing) {
  return step_time(model, layout, machine, practice, routing, StepClock(layout, routing.recorded()));
}

StepTime step_time(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                   const Routing& routing, const StepClock& clock) {
  return StepModel(model, layout, machine, practice).seconds(routing, clock);
}

PassTimes pass_times(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice) {
  StepModel step(model, layout, machine, practice);
  step.make_pieces(1);
  return step.pass_times();
}

double step_bound(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                  const Routing& routing) {
  return StepModel(model, layout, machine, practice).bound(routing);
}

ClockResult step_course(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                        const StepClock& clock) {
  StepModel step(model, layout, machine, practice);
  step.make_pieces(1);
  return step.course({}, clock);
}

double seconds_along(const ClockResult& course, const ModelShape& model, const Layout& layout, const Machine& machine,
                     const Practice& practice) {
  StepModel step(model, layout, machine, practice);
  step.make_pieces(1);
  return step.along(course);
}

}  // namespace orthant::cost
