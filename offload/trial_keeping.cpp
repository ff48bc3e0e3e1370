// OffloadKeeper's updates that are tried before the norm of all gradients is known.
//
// The update runs on copies of the states. When the norm is known they change places with the states, or they are left
// as they are: nothing is computed back, so that what is dropped leaves no trace in any bit.
#include <utility>

#include "keeper.h"

namespace orthant::offload {

// Page-locked memory is slow to get: it stays from step to step.
void OffloadKeeper::make_trial(Kept& of) {
  const auto like = [&](const Slot& slot) { return Slot(*lanes_, Place::host, slot.dtype(), slot.elements()); };
  of.trial.emplace(Trial{like(*of.master), {}, {}});
  for (const Slot& state : of.states) {
    of.trial->states.push_back(like(state));
  }
  if (!own_master(*of.group)) {
    of.trial->weight = lanes_->device.host_empty(DType::bf16, {of.group->owned_elements});
  }
}

void OffloadKeeper::acquire_trial(Kept& of, Stream& s) {
  ParamGroup& group = *of.group;
  Stream& host = *lanes_->host;
  host.wait(s.record());
  const auto copy = [&](Slot& to, Slot& from) {
    const Tensor& tensor = to.open();
    host.copy(tensor, opened_on_host(from));
    return tensor;
  };
  group.state_stream = &host;
  group.master = copy(of.trial->master, *of.master);
  for (std::size_t i = 0; i < of.states.size(); ++i) {
    group.states[i].values = copy(of.trial->states[i], of.states[i]);
  }
  of.device_weight = std::exchange(group.owned_weight, of.trial->weight.defined() ? of.trial->weight : group.master);
  bring_grad_to_host(of, s);
}

// The gradient stays: the update may have to be made again.
void OffloadKeeper::release_trial(Kept& of) {
  ParamGroup& group = *of.group;
  of.spent = lanes_->host->record();
  group.master = {};
  for (ParamState& state : group.states) {
    state.values = {};
  }
  group.state_stream = nullptr;
  group.owned_weight = std::exchange(of.device_weight, Tensor());
  group.owned_grad = std::exchange(of.device_grad, Tensor());
  if (group.away.grad) {
    of.grad->close();
  }
}

void OffloadKeeper::settle(ParamGroup& group, bool keep, const HookContext& at) {
  Kept* const of = find(group);
  if (of == nullptr) {
    return;
  }
  if (keep) {
    std::swap(*of->master, of->trial->master);
    std::swap(of->states, of->trial->states);
    of->settled = true;
  } else if (rolled_back_ != at.step) {
    rolled_back_ = at.step;
    ++rollbacks_;
  }
}

// After settle, while the state is acquired.
Tensor OffloadKeeper::tried_weight(const Kept& of) const {
  return of.trial->weight.defined() ? of.trial->weight : of.group->master;
}

}  // namespace orthant::offload
