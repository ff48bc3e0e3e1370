#include "core/train/executor.h"

#include <algorithm>
#include <vector>

#include <orthant/device.h>

#include "core/trace/tracing_stream.h"

namespace orthant {
namespace {

// What must be there, and is no longer afterwards.
Bundle take(std::map<std::pair<int, int>, Bundle>& from, std::pair<int, int> place, const char* what) {
  auto node = from.extract(place);
  require(!node.empty(), "the schedule uses {} of chunk {}, micro-batch {} before it is there", what, place.first,
          place.second);
  return std::move(node.mapped());
}

// The ranks of all stages that differ from the caller in nothing else, in order of the stages.
std::vector<int> line_of(const Plan& plan) {
  const Mesh& mesh = plan.mesh();
  return mesh.members(plan.axes_of(Dim::layer, Region::norm), mesh.rank());
}

}  // namespace

Executor::Executor(Plan& plan, Stream& stream, std::int64_t sequences)
    : plan_(plan),
      stream_(stream),
      stage_(plan.stage()),
      stages_(plan.stages()),
      pieces_(static_cast<int>(plan.cut().size()) - 1) {
  for (int space = 0; space < static_cast<int>(plan.spaces().size()); ++space) {
    const std::int64_t held = plan.held_positions(Region::embedding, plan.mesh().rank(), space);
    rows_.push_back(plan.rows(Region::norm, sequences * held).count);
  }
  if (stages_ > 1) {
    connect("activations between stages", x_, true);
    connect("gradients between stages", dx_, false);
  }
}

void Executor::set_tokens(std::int64_t tokens) {
  rows_.front() = plan_.rows(Region::norm, tokens).count;
}

const std::vector<Slot>& Executor::alive(int piece) const {
  const int link = plan_.cut()[static_cast<std::size_t>(piece)] - 1;
  return plan_.links()[static_cast<std::size_t>(link)].passes;
}

// Link s joins stages s and s + 1; where a stage has several chunks the last link leads from the last stage back to the
// first. Neighbouring links have different colours and those of one colour are made together, on every rank in the same
// order; a rank that has no link of a colour makes a group of itself.
// Each link carries one element now: a transport may connect two ranks at their first message, for which both must be
// there, and that is not for the middle of a step.
void Executor::connect(const std::string& name, Lane& lane, bool forward) {
  lane.sends = plan_.device().make_side_stream();
  const Tensor first = plan_.device().empty(compute_type(plan_.settings()), {1});
  stream_.fill(first, 0);
  const std::vector<int> line = line_of(plan_);
  const int links = pieces_ > stages_ ? stages_ : stages_ - 1;
  auto colour_of = [&](int link) { return link == stages_ - 1 && stages_ % 2 == 1 ? 2 : link % 2; };
  for (int colour = 0; colour < 3; ++colour) {
    bool used = false;
    int own = -1;
    for (int link = 0; link < links; ++link) {
      if (colour_of(link) == colour) {
        used = true;
        own = link == stage_ || (link + 1) % stages_ == stage_ ? link : own;
      }
    }
    if (!used) {
      continue;
    }
    std::vector<int> members = {plan_.mesh().rank()};
    if (own >= 0) {
      members = {line[own], line[(own + 1) % stages_]};
    }
    Group& group = plan_.mesh().group_of(name, members);
    if (own >= 0) {
      const bool lower = own == stage_;  // the link leads to the next stage
      const int peer = 1 - group.rank();
      if (lower == forward) {
        lane.out = {&group, peer};
        lane.sends->wait(stream_.record());
        group.send(first, peer, *lane.sends);
        stream_.wait(lane.sends->record());
      } else {
        lane.in = {&group, peer};
        group.recv(first, peer, stream_);
      }
    }
  }
}

void Executor::send(Lane& lane, Place place) {
  require(lane.out.group != nullptr, "the schedule sends from stage {}, which has no such neighbour", stage_);
  const Bundle bundle = take(lane.leaving, place, "the result");
  lane.sends->wait(stream_.record());
  for (const Tensor& t : bundle) {
    lane.out.group->send(t, lane.out.peer, *lane.sends);
  }
  lane.sent.push_back(lane.sends->record());
}

// What a stage sends stays in memory until somebody knows that it has left. Nobody waits for that: but the neighbour
// answers only after it has received, and then the wait for the send is over at once.
void Executor::expect_acknowledgements(std::span<const Instr> program) {
  const auto count = [&](Lane& lane, int neighbour, Op sends, Op receives, int micro_batches) {
    std::size_t received = 0;
    for (const Instr& instr : plan_.schedule().steps((neighbour + stages_) % stages_, stages_, micro_batches)) {
      received += instr.op == receives ? 1 : 0;
      if (instr.op == sends) {
        lane.acknowledges.push_back(received);
      }
    }
  };
  int micro_batches = 0;
  bool trains = false;
  for (const Instr& instr : program) {
    micro_batches = std::max(micro_batches, instr.micro_batch + 1);
    trains = trains || instr.op == Op::backward;
  }
  if (trains && stages_ > 1) {
    count(x_, stage_ - 1, Op::send_x, Op::recv_dx, micro_batches);
    count(dx_, stage_ + 1, Op::send_dx, Op::recv_x, micro_batches);
  }
}

// back: the lane that leads to the sender. cut: before which piece it is.
void Executor::receive(Lane& lane, const Lane& back, Place place, int cut) {
  require(lane.in.group != nullptr, "the schedule receives at stage {}, which has no such neighbour", stage_);
  Bundle bundle;
  for (const Slot& slot : alive(cut)) {
    bundle.push_back(plan_.device().empty(slot.dtype, {rows_of(slot), slot.columns}));
    lane.in.group->recv(bundle.back(), lane.in.peer, stream_);
  }
  if (!lane.acknowledges.empty()) {
    const std::size_t left = lane.acknowledges.front();
    lane.acknowledges.pop_front();
    if (left > 0) {
      stream_.wait(back.sent.at(left - 1));
    }
  }
  lane.arrived[place] = std::move(bundle);
}

// To the neighbouring piece: by message, or here where it is on the same stage.
void Executor::hand_over(Lane& lane, Place from, int to_chunk, int cut, Bundle bundle) {
  const std::vector<Slot>& slots = alive(cut);
  require(bundle.size() == slots.size() && bundle.front().dim(0) == rows_of(slots.front()),  // the rest is the model's
          "pieces hand over {} tensors of {} rows, but chunk {} gives {} of {}", slots.size(), rows_of(slots.front()),
          from.first, bundle.size(), bundle.empty() ? 0 : bundle.front().dim(0));
  if (stages_ > 1) {
    lane.leaving[from] = std::move(bundle);
  } else {
    lane.arrived[{to_chunk, from.second}] = std::move(bundle);
  }
}

namespace {

// Layers run from here on, until the gradients are finished or something throws.
class LayersRun {
 public:
  LayersRun(Mesh& mesh, const Stream& stream) : mesh_(mesh) { mesh_.layers_run(&stream); }
  LayersRun(const LayersRun&) = delete;
  LayersRun& operator=(const LayersRun&) = delete;
  ~LayersRun() { end(); }
  void end() { mesh_.layers_run(nullptr); }

 private:
  Mesh& mesh_;
};

}  // namespace

void Executor::run(std::span<const Instr> program, StageWork& work) {
  LayersRun layers(plan_.mesh(), stream_);
  const MemoryScope as(plan_.device(), MemoryKind::work);
  for (Lane* lane : {&x_, &dx_}) {  // a run that failed may have left something
    lane->arrived.clear();
    lane->leaving.clear();
    lane->sent.clear();
    lane->acknowledges.clear();
  }
  expect_acknowledgements(program);
  std::map<int, std::size_t> last_use;       // of each micro-batch
  std::map<int, std::size_t> last_backward;  // of each chunk
  for (std::size_t i = 0; i < program.size(); ++i) {
    if (program[i].op == Op::forward || program[i].op == Op::backward) {
      last_use[program[i].micro_batch] = i;
    }
    if (program[i].op == Op::backward) {
      last_backward[program[i].chunk] = i;
    }
  }
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto& [op, chunk, m] = program[i];
    const Place place{chunk, m};
    switch (op) {
      case Op::load: {
        const Phase phase(stream_, "micro-batch");
        work.load(m);
        break;
      }
      case Op::recv_x: receive(x_, dx_, place, piece_of(chunk)); break;
      case Op::recv_dx: receive(dx_, x_, place, piece_of(chunk) + 1); break;
      case Op::send_x: send(x_, place); break;
      case Op::send_dx: send(dx_, place); break;
      case Op::forward: {
        const Phase phase(stream_, "forward");
        Bundle y = work.forward(chunk, m, is_first(chunk) ? Bundle() : take(x_.arrived, place, "the input"));
        if (!is_last(chunk)) {
          hand_over(x_, place, chunk + 1, piece_of(chunk) + 1, std::move(y));
        }
        break;
      }
      case Op::backward: {
        const Phase phase(stream_, "backward");
        Bundle dy = is_last(chunk) ? Bundle() : take(dx_.arrived, place, "the gradient");
        Bundle dx = work.backward(chunk, m, std::move(dy), last_backward[chunk] == i);
        if (!is_first(chunk)) {
          hand_over(dx_, place, chunk - 1, piece_of(chunk), std::move(dx));
        }
        break;
      }
      case Op::finish_grads:
        layers.end();
        {
          const Phase phase(stream_, "sums of gradients");
          work.finish_grads();
        }
        break;
    }
    if ((op == Op::forward || op == Op::backward) && last_use[m] == i) {
      work.unload(m);
    }
  }
  for (Lane* lane : {&x_, &dx_}) {
    if (lane->sends != nullptr) {
      stream_.wait(lane->sends->record());
    }
  }
}

}  // namespace orthant
