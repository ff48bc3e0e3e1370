// Holder: the hooks of a keeper that say where weights, gradients and states are between their uses. ZeRO and offload
// are such keepers. keeper.h has the order of a step's calls, and the rules for threads and errors.
#pragma once

#include <cstdint>
#include <span>

#include <orthant/abi/plan.h>
#include <orthant/hook_context.h>
#include <orthant/param_group.h>

namespace orthant {

// What a step needs of a group between `acquire` and `release`.
//   weight: ParamGroup::weight, to be read.
//   grad:   ParamGroup::grad, to be added to.
//   whole_grad: ParamGroup::owned_grad, the gradient of the whole batch, on ParamGroup::grad_stream; to be changed.
//   state:  master, the optimizer's tensors and owned_weight, to be changed, and owned_grad, on
//           ParamGroup::state_stream. The update needs it, and so does each rank on its own when a checkpoint is read:
//           no collectives. `plugin_states` are always there.
//   saved:  as state, but only to be read, as when a checkpoint is written.
//   trial:  as state, but what is changed are copies: they take the state's place when `settle` says so. Only where
//           Holding::tries, at most once a step.
enum class Held { weight, grad, whole_grad, state, saved, trial };

// Why owned_weight is as it is.
//   start: initial values. loaded: from a checkpoint, after `start`. updated: by the optimizer.
enum class Change { start, loaded, updated };

class Holder {
 public:
  virtual ~Holder() = default;

  // --- before training
  // Whether it comes before all others in the chain, whatever the order of the tables: it brings what they work on, as
  // an offload does. Of several such keepers the order of the tables counts.
  virtual bool outermost() const { return false; }
  // Called once, when a group's place is known and it has no buffers. May change `holding` and nothing else. A keeper
  // may remember the group's address, which stays. Two keepers that share out one group are refused, and so are two
  // that hold something of it elsewhere (Holding::away).
  virtual void adopt(ParamGroup&, Holding& /*holding*/) {}

  // --- around each use
  virtual void acquire(ParamGroup&, Held, const HookContext&) {}
  virtual void release(ParamGroup&, Held, const HookContext&) {}

  // --- routed experts
  // Whether it reads rows_of_experts: the host then waits for the counts of each routed layer.
  virtual bool reads_rows() const { return false; }
  // How many rows each expert of the group is about to compute, in the order of the group's experts. Experts without
  // rows are not read, and their gradients stay zero. May change `weight` of the others, on the context's stream, or
  // have rows computed in the host's memory (ParamGroup::on_host). Comes again where the forward pass is recomputed.
  virtual void rows_of_experts(ParamGroup&, std::span<const std::int64_t> /*rows*/, const HookContext&) {}

  // --- the update
  // The norm is known, and the group was changed between acquire(trial) and its release. keep: the copies are the state
  // from here on, and the following acquire(state) gives them, with no update before after_step. Otherwise they are
  // dropped, and the update follows as if nothing had been tried.
  virtual void settle(ParamGroup&, bool /*keep*/, const HookContext&) {}
  // After weight_ready of every keeper: the other ranks of the group need owned_weight, which is on the main stream's
  // device again. For a group whose weights are away the context's stream is ordered, on return, after everything that
  // reads owned_weight.
  virtual void after_step(ParamGroup&, Change, const HookContext&) {}
  // after_step was called for all groups. On return the context's stream is ordered after all that the keeper began
  // there.
  virtual void finish_updates(const HookContext&) {}
  // Bytes of files that this rank's groups take on a disk, as far as they are known; counted on the device of a plan
  // too, where no file is made.
  virtual std::int64_t disk_bytes() const { return 0; }
};

}  // namespace orthant
