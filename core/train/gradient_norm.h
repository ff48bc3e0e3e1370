// GradientNorm: the one norm of the whole model's gradient.
//
// Groups are added in any order, as their gradients become whole. What each of them adds has a place of its own, and
// the places are summed in the order of the model: the bits depend neither on when a group was added, nor on where its
// gradient lives.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <vector>

#include "core/layers/parameter_store.h"

namespace orthant {

class GradientNorm {
 public:
  // All references outlive it.
  GradientNorm(Plan& plan, ParamStore& store, Stream& stream);

  // Forgets the last step.
  void begin_step();
  // Shows the keepers the group's whole gradient, which they may change, and takes its squares. REQUIRES: on the
  // context's stream the gradient is whole; once a step for each group.
  void add(ParamGroup& group, const HookContext& at);
  // Adds the groups that are left. sum_squares f64 [1] = the sum of squares of the whole model's gradient: every slice
  // counted by its owners among the ranks that hold it, then summed over `model`, the ranks that train one model
  // together (Mesh::worker_members). The same bits on each of them. REQUIRES: all gradients are whole.
  void finish(const Tensor& sum_squares, Group& model, const HookContext& at);

  // Waits for the last step: the groups of which something that this rank counts is not finite.
  std::vector<const ParamGroup*> not_finite() const;

 private:
  // Owned elements that lie together.
  struct Run {
    std::int64_t begin = 0, count = 0;
  };
  struct Share {
    std::vector<Run> runs;  // that this rank counts
    bool added = false;
    Stream* home = nullptr;  // that has written its place; null: nothing is there to be written
  };
  static std::vector<Run> counted_runs(const ParamGroup& group);
  void bring();

  Plan& plan_;
  ParamStore& store_;
  Stream& stream_;
  std::vector<Share> shares_;  // by ParamGroup::id
  Tensor squares_;             // f64 [groups]
  Tensor on_host_;             // the same, of streams of the host; undefined where no gradient lives there
};

}  // namespace orthant
