// Executor: runs one stage's list of instructions (Schedule::steps). What is alive at a cut of the chain travels
// between the stages, a tensor for each slot (orthant/model.h) and in the order of the slots, and so do the gradients.
//
// Receives wait on the main stream. Sends go on two side streams, one for activations and one for gradients, so that a
// stage does not wait until its neighbour takes them. Each direction of each link between two stages has a group of
// its own: messages of different links never wait for each other.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <orthant/model.h>
#include <orthant/plan.h>

namespace orthant {

// What the instructions act on: this rank's pieces of a model and its micro-batches. x: what enters a piece, nothing
// for the model's first; dy: the gradients of what left it, none for the model's last.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual void load(int micro_batch) = 0;    // before its first use
  virtual void unload(int micro_batch) = 0;  // after its last one
  virtual Bundle forward(int chunk, int micro_batch, Bundle x) = 0;
  // `last`: no other backward of this chunk follows. It may overwrite dy.
  virtual Bundle backward(int chunk, int micro_batch, Bundle dy, bool last) = 0;
  virtual void finish_grads() = 0;
};

class Executor {
 public:
  // Collective over the world; neighbouring stages exchange a first message. sequences: of one micro-batch.
  // REQUIRES: the plan is frozen, not dry. Errors: LayoutError where their tokens do not divide.
  Executor(Plan& plan, Stream& stream, std::int64_t sequences);

  // Of one micro-batch of the runs that follow, those of space 0 that this rank holds where no region cuts them.
  // Errors: LayoutError where they do not divide.
  void set_tokens(std::int64_t tokens);

  // REQUIRES: the programs of all stages fit each other (core/plan/schedule_check.h). On return the stream is ordered
  // after all sends. Errors: those of the work and of the groups.
  void run(std::span<const Instr> program, StageWork& work);

 private:
  using Place = std::pair<int, int>;  // chunk, micro-batch
  struct End {
    Group* group = nullptr;  // null: there is no such neighbour
    int peer = 0;            // rank in the group
  };
  // What one direction moves: where it comes from, where it goes, and what waits here.
  struct Lane {
    End in, out;
    std::unique_ptr<Stream> sends;
    std::map<Place, Bundle> arrived, leaving;
    std::vector<std::shared_ptr<Event>> sent;  // of each hand-over of this run
    // A hand-over that comes in says that its sender has received so many of the other lane's.
    std::deque<std::size_t> acknowledges;
  };
  void connect(const std::string& name, Lane& lane, bool forward);
  bool is_first(int chunk) const { return piece_of(chunk) == 0; }
  bool is_last(int chunk) const { return piece_of(chunk) == pieces_ - 1; }
  void send(Lane& lane, Place place);
  void receive(Lane& lane, const Lane& back, Place place, int cut);
  void expect_acknowledgements(std::span<const Instr> program);
  void hand_over(Lane& lane, Place from, int to_chunk, int cut, Bundle bundle);
  int piece_of(int chunk) const { return chunk * stages_ + stage_; }
  // What is alive at the cut before a piece.
  const std::vector<Slot>& alive(int piece) const;
  std::int64_t rows_of(const Slot& slot) const { return rows_[static_cast<std::size_t>(slot.space)]; }

  Plan& plan_;
  Stream& stream_;
  int stage_, stages_, pieces_;
  std::vector<std::int64_t> rows_;  // of what travels, in each token space
  Lane x_, dx_;
};

}  // namespace orthant
