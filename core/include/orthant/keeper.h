// Keeper: who holds parameters, gradients and optimizer state, and who sums gradients. ZeRO, offload, compression of
// gradients and Local SGD are keepers.
//
// The plan has a chain of keepers, in the order of the plugins' tables. A step calls, in this order:
//
//   layer by layer      acquire(weight), acquire(grad), the layer, release(grad), release(weight); in the forward pass
//                       of a routed layer rows_of_experts once its gate has chosen
//   a group's last      before the release: grad_ready of every keeper, then sum_grads until one returns true; with
//                       Holding::sum_each after every micro-batch
//   after the backward  finish_sums of every keeper; the core sums what nobody has summed; then group by group
//                       acquire(whole_grad), whole_grads of every keeper, the norm, release(whole_grad)
//   the update          settle of what was tried; acquire(state), the update, weight_ready of every keeper, after_step,
//                       release(state); after all groups finish_updates
//
// Some groups may be updated earlier (`early`): behind the backward pass of their layer, while that of the layers
// before goes on. A group's whole_grad and update then come there, or its trial: acquire(trial), the update,
// release(trial).
//
// A forward pass acquires weights alone, the head's also its grad. release(state) comes once after a group has been
// allocated, without an acquire before it. docs/guides/plugins.md draws it, with what is valid when. `acquire` and the
// other hooks go through the chain in its order, `release` in reverse.
//
// Thread safety: hooks run on the rank's own thread. Every member of a group meets the same hooks in the same order,
// but ranks on different stages meet theirs at different times (ParamGroup::scattered). Errors: what a hook throws ends
// the run; the message names the plugin.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/param.h>

namespace orthant {

class Mesh;
class Stream;

// Which way a layer is being run.
enum class Pass { none, forward, backward };

// The place in the step at which a hook is called. Hooks around a group's early update have Pass::backward and no
// micro-batch.
struct HookContext {
  Stream& stream;          // the main one: what the hook enqueues here is ordered with the step
  std::int64_t step = 0;   // from 0: the step that is being taken; the same after a resume
  double lr = 0;           // of this step; 0 outside of one
  int micro_batch = -1;    // -1: none, as at the end of a step
  Pass pass = Pass::none;  // none: no layer is running
  bool training = true;    // false: validation; weights only
};

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

// Whether a keeper sums gradients.
//   none: never. rest: what no keeper before it has summed. all: it must be the one that sums, so no keeper that sums
//   may come before it; the plan refuses that, naming both plugins.
enum class Sums { none, rest, all };

class Keeper {
 public:
  virtual ~Keeper() = default;

  // --- before training
  virtual Sums sums() const { return Sums::none; }
  // Whether it comes before all others in the chain, whatever the order of the tables: it brings what they work on, as
  // an offload does. Of several such keepers the order of the tables counts.
  virtual bool outermost() const { return false; }
  // Called once for each set of ranks that gradients are summed over, before any adopt: on every rank of the world in
  // one order, also where this rank holds nothing that is summed so. Groups of ranks of the keeper's own are made here.
  virtual void sum_group(Mesh&, Group& /*sum*/) {}
  // Called once, when a group's place is known and it has no buffers. May change `holding` and nothing else. Two
  // keepers that share out one group are refused, and so are two that hold something of it elsewhere (Holding::away).
  virtual void adopt(ParamGroup&, Holding& /*holding*/) {}
  // Whether groups may be updated while the backward pass of others goes on: whole_grads, weight_ready and after_step
  // then come group by group in the order in which gradients become whole, which is the same on all ranks of a group's
  // sum, and states of several groups may be acquired at one time. A chain with a keeper that says no is refused where
  // somebody asks for such updates (optimizer.in_backward, Holding::tries).
  virtual bool early() const { return false; }
  // The tensors that this keeper remembers from step to step for the group: the core allocates them, fills them with
  // zeros and saves them with each checkpoint; ParamGroup::state gives them. {}: it remembers nothing. What a keeper
  // keeps elsewhere is lost when a run resumes, and `orthant plugins --check` finds that.
  virtual std::vector<StateSpec> state(const ParamGroup&) const = 0;

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

  // --- the update
  // The norm is known, and the group was changed between acquire(trial) and its release. keep: the copies are the state
  // from here on, and the following acquire(state) gives them, with no update before after_step. Otherwise they are
  // dropped, and the update follows as if nothing had been tried.
  virtual void settle(ParamGroup&, bool /*keep*/, const HookContext&) {}
  // master and owned_weight have changed, and may be changed further, both of them, on the context's stream, which is
  // that of acquire(state). Called for all groups, in their order but for early updates, between acquire and release of
  // the state.
  virtual void weight_ready(ParamGroup&, Change, const HookContext&) {}
  // After weight_ready of every keeper: the other ranks of the group need owned_weight, which is on the main stream's
  // device again. For a group whose weights are away the context's stream is ordered, on return, after everything that
  // reads owned_weight.
  virtual void after_step(ParamGroup&, Change, const HookContext&) {}
  // after_step was called for all groups. On return the context's stream is ordered after all that the keeper began
  // there.
  virtual void finish_updates(const HookContext&) {}
  // After the update: numbers of this rank's step. Those of rank 0 stand as PLUGIN.KEY in the step's line of
  // metrics.jsonl, where one is logged.
  virtual void metrics(std::map<std::string, double>& /*to*/) {}
  // Bytes of files that this rank's groups take on a disk, as far as they are known; counted on the device of a plan
  // too, where no file is made.
  virtual std::int64_t disk_bytes() const { return 0; }
  // Whether its hooks take gradients of any ParamGroup::grad_dtype, or look at none. A chain with a keeper that says no
  // is refused where gradients are kept in bf16 (optimizer.gradient_dtype).
  virtual bool narrow_gradients() const { return false; }
};

}  // namespace orthant
