// Summer: the hooks of a keeper that sum gradients over ranks, or change them before or behind their sum. Compressed,
// late and overlapped sums are such keepers. keeper.h has the order of a step's calls, and the rules for threads and
// errors.
#pragma once

#include <orthant/abi/plan.h>
#include <orthant/hook_context.h>
#include <orthant/param_group.h>

namespace orthant {

class Mesh;

// Whether a keeper sums gradients.
//   none: never. rest: what no keeper before it has summed. all: it must be the one that sums, so no keeper that sums
//   may come before it; the plan refuses that, naming both plugins.
enum class Sums { none, rest, all };

class Summer {
 public:
  virtual ~Summer() = default;

  // --- before training
  virtual Sums sums() const { return Sums::none; }
  // Called once for each set of ranks that gradients are summed over, before any adopt: on every rank of the world in
  // one order, also where this rank holds nothing that is summed so. Groups of ranks of the keeper's own are made here.
  virtual void sum_group(Mesh&, Group& /*sum*/) {}
  // Whether its hooks take gradients of any ParamGroup::grad_dtype, or look at none. A chain with a keeper that says no
  // is refused where gradients are kept in bf16 (optimizer.gradient_dtype).
  virtual bool narrow_gradients() const { return false; }

  // --- gradients
  // Once a step, after the last micro-batch's backward (with sum_each: after every one's): `grad` is this rank's
  // contribution that was not summed yet. May be changed, on the context's stream.
  virtual void grad_ready(ParamGroup&, const HookContext&) {}
  // After grad_ready of every keeper. True: this keeper sums `grad` over ParamGroup::sum, now or in finish_sums, on any
  // stream; until finish_sums, or ParamGroup::sum_done if it sets that, nobody else touches `grad`, and no other keeper
  // is asked.
  virtual bool sum_grads(ParamGroup&, const HookContext&) { return false; }
  // All gradients are enqueued. On return the context's stream is ordered after the sums that this keeper began.
  virtual void finish_sums(const HookContext&) {}
  // owned_grad is the gradient of the whole batch. May be changed on the context's stream, which is that of
  // acquire(whole_grad), before the norm is taken and clipped.
  virtual void whole_grads(ParamGroup&, const HookContext&) {}
};

}  // namespace orthant
