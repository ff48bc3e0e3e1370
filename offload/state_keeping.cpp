// OffloadKeeper's states and the update beside them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "keeper.h"

namespace orthant::offload {

// At the end of a step groups are updated in their order.
void OffloadKeeper::prefetch_state(const Kept& of, const HookContext& at) {
  const auto next = std::find_if(std::next(kept_.find(of.group->id)), kept_.end(),
                                 [](const auto& entry) { return entry.second.group->away.state; });
  if (places_.states != Place::nvme || at.pass != Pass::none || next == kept_.end() || next->second.updated) {
    return;
  }
  next->second.master->open();
  for (Slot& state : next->second.states) {
    state.open();
  }
  prefetch_grad(of, at);
}

// Its bytes, for the host's stream.
Tensor OffloadKeeper::opened_on_host(Slot& slot) {
  const Tensor& tensor = slot.open();
  if (slot.ready() != nullptr) {
    lanes_->host->wait(slot.ready());
  }
  return tensor;
}

void OffloadKeeper::bring_grad_to_host(Kept& of, Stream& s) {
  ParamGroup& group = *of.group;
  if (group.away.grad) {
    if (of.grad_held) {
      const Tensor grad = opened_on_host(*of.grad);
      group.owned_grad = group.whole_grad ? grad.slice(group.owned_begin, {group.owned_elements}) : grad;
    }
  } else if (group.owned_grad.defined()) {
    of.device_grad = group.owned_grad;
    group.owned_grad = lanes_->device.host_empty(group.grad_dtype, {group.owned_elements});
    for (const ParamGroup::Run& run : due_runs(of)) {
      down(group.owned_grad.slice(run.begin, {run.count}), of.device_grad.slice(run.begin, {run.count}), s.record());
    }
    lanes_->host->wait(lanes_->down->record());
  }
}

void OffloadKeeper::acquire_state_on_host(Kept& of, bool to_change, const HookContext& at) {
  ParamGroup& group = *of.group;
  Stream& host = *lanes_->host;
  host.wait(at.stream.record());
  group.state_stream = &host;
  group.master = opened_on_host(*of.master);
  for (std::size_t i = 0; i < of.states.size(); ++i) {
    group.states[i].values = opened_on_host(of.states[i]);
  }
  if (!to_change) {
    return;
  }
  prefetch_state(of, at);
  of.device_weight = std::exchange(group.owned_weight, Tensor());
  if (group.away.weight && !gathered_on_device(group)) {
    group.owned_weight = opened_on_host(*of.weight);
    if (of.settled) {
      host.copy(group.owned_weight, tried_weight(of));
    }
  } else if (of.settled) {
    group.owned_weight = tried_weight(of);
  } else {
    group.owned_weight =
        own_master(group) ? group.master : lanes_->device.host_empty(DType::bf16, {group.owned_elements});
  }
  if (!of.settled) {  // else nothing is updated any more
    bring_grad_to_host(of, at.stream);
  }
}

void OffloadKeeper::acquire_state_on_device(Kept& of, bool to_change, Stream& s) {
  ParamGroup& group = *of.group;
  const auto bring = [&](Slot& slot) {
    const Tensor& host = slot.open();
    Tensor here = empty(host.dtype(), host.elements());
    up(here, host, slot.ready());
    slot.close();
    return here;
  };
  if (group.away.weight) {
    const Tensor here = bring(*of.weight);
    group.owned_weight = group.whole_weight ? here.slice(group.owned_begin, {group.owned_elements}) : here;
    if (group.whole_weight) {
      group.weight = here;
    }
    if (own_master(group)) {
      group.master = group.owned_weight;
    }
  }
  if (to_change && group.away.grad && of.grad_held) {
    const Tensor here = bring(*of.grad);
    group.owned_grad = group.whole_grad ? here.slice(group.owned_begin, {group.owned_elements}) : here;
  }
  s.wait(lanes_->up->record());
}

void OffloadKeeper::acquire_state(Kept& of, bool to_change, const HookContext& at) {
  if (lingering_ != nullptr && (to_change || lingering_ != &of)) {
    close_states(*std::exchange(lingering_, nullptr));
  }
  if (of.lazy.has_value() && !to_change) {
    catch_up_all(of, at.stream);
  }
  if (of.counted && to_change) {
    of.group->put_off = of.lazy->idle_runs();
  }
  of.updated = false;
  if (of.weight.has_value() && to_change) {
    if (of.fetched.defined()) {
      lanes_->host->wait(of.arrived);  // it still reads what is about to change
    }
    drop_weight(of);
    if (of.window.has_value()) {
      of.window->changed();
    }
  }
  if (of.group->away.state) {
    acquire_state_on_host(of, to_change, at);
  } else {
    acquire_state_on_device(of, to_change, at.stream);
  }
}

// The weights go where the next layers, or the ranks that gather them, look for them.
void OffloadKeeper::after_step(ParamGroup& group, Change why, const HookContext& at) {
  Kept* const found = find(group);
  if (found == nullptr) {
    return;
  }
  Kept& of = *found;
  of.updated = true;
  if (of.lazy.has_value() && why != Change::updated) {
    of.lazy->forget();
  }
  if (!group.away.state || (group.away.weight && !gathered_on_device(group))) {
    return;
  }
  if (group.away.weight) {
    group.weight = empty(group.owned_weight.dtype(), group.padded);
    of.device_weight = group.weight.slice(group.owned_begin, {group.owned_elements});
  }
  lanes_->up->wait(at.stream.record());
  lanes_->up->wait(lanes_->host->record());
  for (const ParamGroup::Run& run : due_runs(of)) {
    up(of.device_weight.slice(run.begin, {run.count}), group.owned_weight.slice(run.begin, {run.count}), nullptr);
  }
  at.stream.wait(lanes_->up->record());
  group.owned_weight = of.device_weight;
}

void OffloadKeeper::close_states(Kept& of) {
  of.master->close();
  for (Slot& state : of.states) {
    state.close();
  }
}

std::vector<ParamGroup::Run> OffloadKeeper::due_runs(const Kept& of) const {
  return of.counted ? of.lazy->chosen_runs() : std::vector<ParamGroup::Run>{{0, of.group->owned_elements}};
}

void OffloadKeeper::release_state(Kept& of, bool changed, const HookContext& at) {
  ParamGroup& group = *of.group;
  Stream& s = at.stream;
  group.put_off.clear();
  if (group.away.state) {
    const std::shared_ptr<Event> done = lanes_->host->record();
    if (changed) {
      of.master->changed(done);
      for (Slot& state : of.states) {
        state.changed(done);
      }
      close_states(of);
    } else {
      lingering_ = &of;
    }
    group.master = {};
    for (ParamState& state : group.states) {
      state.values = {};
    }
    group.state_stream = nullptr;
    of.spent = done;
    of.settled = false;
  }
  if (changed && of.device_grad.defined()) {
    group.owned_grad = std::exchange(of.device_grad, Tensor());
  }
  if (changed && group.away.grad) {
    group.owned_grad = {};
    of.grad->close();
    of.grad_held = of.grad_held && !of.updated;
  }
  if (!group.away.weight) {
    if (changed && group.away.state) {
      group.owned_weight = std::exchange(of.device_weight, Tensor());
    }
    return;
  }
  if (changed && group.away.state && !gathered_on_device(group)) {
    of.weight->changed(of.spent);
    of.weight->close();
  } else if (changed && (of.updated || !group.away.state)) {
    of.weight->changed(
        down(of.weight->open_empty(), group.whole_weight ? group.weight : group.owned_weight, s.record()));
    of.weight->close();
  }
  if (changed || !group.away.state) {
    group.weight = group.whole_weight ? Tensor() : group.weight;
    group.owned_weight = {};
    group.master = group.away.state || own_master(group) ? Tensor() : group.master;
  }
  of.device_weight = {};
}

}  // namespace orthant::offload
