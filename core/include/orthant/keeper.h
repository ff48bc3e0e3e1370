// Keeper: who holds parameters, gradients and optimizer state, and who sums gradients. ZeRO, offload, compression of
// gradients and Local SGD are keepers.
//
// A keeper has the hooks of a Holder (holder.h), of a Summer (summer.h), or of both, and those below, which every
// keeper may need.
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

#include <map>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/holder.h>
#include <orthant/summer.h>

namespace orthant {

class Keeper : public Holder, public Summer {
 public:
  // The tensors that this keeper remembers from step to step for the group: the core allocates them, fills them with
  // zeros and saves them with each checkpoint; ParamGroup::state gives them. {}: it remembers nothing. What a keeper
  // keeps elsewhere is lost when a run resumes, and `orthant plugins --check` finds that.
  virtual std::vector<StateSpec> state(const ParamGroup&) const = 0;

  // Whether groups may be updated while the backward pass of others goes on: whole_grads, weight_ready and after_step
  // then come group by group in the order in which gradients become whole, which is the same on all ranks of a group's
  // sum, and states of several groups may be acquired at one time. A chain with a keeper that says no is refused where
  // somebody asks for such updates (optimizer.in_backward, Holding::tries).
  virtual bool early() const { return false; }
  // master and owned_weight have changed, and may be changed further, both of them, on the context's stream, which is
  // that of acquire(state). Called for all groups, in their order but for early updates, between acquire and release of
  // the state.
  virtual void weight_ready(ParamGroup&, Change, const HookContext&) {}
  // After the update: numbers of this rank's step. Those of rank 0 stand as PLUGIN.KEY in the step's line of
  // metrics.jsonl, where one is logged.
  virtual void metrics(std::map<std::string, double>& /*to*/) {}
};

}  // namespace orthant
