#include "keeper.h"

#include <algorithm>
#include <utility>

namespace orthant::offload {

OffloadKeeper::OffloadKeeper(const Settings& settings, const KeeperPlaces& places, std::shared_ptr<Lanes> lanes)
    : settings_(settings), places_(places), lanes_(std::move(lanes)) {}

void OffloadKeeper::adopt(ParamGroup& group, Holding& holding) {
  seen_ += group.elements;
  if (static_cast<double>(on_device_ + group.elements) <= places_.device_fraction * static_cast<double>(seen_)) {
    on_device_ += group.elements;
    return;
  }
  holding.away = {.weight = places_.weights != Place::device,
                  .grad = places_.gradients != Place::device && !group.frozen,
                  .state = places_.states != Place::device && !group.frozen};
  holding.tries = places_.speculative && holding.away.state;
  const bool lazy = places_.lazy_experts && group.experts && !group.frozen;
  if (!holding.away.any() && !lazy) {
    return;
  }
  const Optimizer& optimizer = settings_.catalogue->get<Optimizer>(settings_.optimizer.name);
  for (const Param& p : group.params) {
    if (holding.away.state && optimizer.treatment(p.spec, settings_.optimizer).whole) {
      throw SettingError("plugins.offload.states",
                         fmt::format("the optimizer \"{}\" wants whole matrices ('{}'), which ranks gather on the "
                                     "device: its states cannot be updated elsewhere\nwrite states = \"device\", or "
                                     "another optimizer",
                                     settings_.optimizer.name, p.spec.name));
    }
  }
  kept_[group.id].group = &group;
}

OffloadKeeper::Kept* OffloadKeeper::find(const ParamGroup& group) {
  const auto found = kept_.find(group.id);
  return found == kept_.end() ? nullptr : &found->second;
}

std::vector<StateSpec> OffloadKeeper::state(const ParamGroup& group) const {
  if (places_.lazy_experts && group.experts && !group.frozen) {
    refuse_lazy(group);
  }
  if (places_.after_gate && group.experts) {
    refuse_after_gate(group);
  }
  return {};
}

// --- copies

std::shared_ptr<Event> OffloadKeeper::down(const Tensor& to_host, const Tensor& from,
                                           const std::shared_ptr<Event>& after) {
  lanes_->down->wait(after);
  lanes_->down->download(to_host, from);
  lanes_->traffic.to_host += static_cast<std::int64_t>(from.bytes());
  return lanes_->down->record();
}

void OffloadKeeper::up(const Tensor& to, const Tensor& from_host, const std::shared_ptr<Event>& after) {
  if (after != nullptr) {
    lanes_->up->wait(after);
  }
  lanes_->up->upload(to, from_host);
  lanes_->traffic.to_device += static_cast<std::int64_t>(to.bytes());
}

// --- the first release: everything was made on the device

// All that this rank keeps on disk, so that a disk that is too small is found before training starts.
void OffloadKeeper::reserve_disk() {
  std::int64_t bytes = 0;
  const auto add = [&](Place place, DType dtype, std::int64_t elements) {
    bytes += place == Place::nvme ? aligned_up(elements * static_cast<std::int64_t>(size_of(dtype))) : 0;
  };
  for (const auto& [id, of] : kept_) {
    const ParamGroup& group = *of.group;
    add(places_.weights, compute_dtype(), group.whole_weight ? group.padded : group.owned_elements);
    if (group.frozen) {
      continue;  // weights alone
    }
    add(places_.states, own_master(group) ? compute_dtype() : DType::f32, group.owned_elements);
    for (const ParamState& state : group.states) {
      add(places_.states, DType::u8, state.bytes());
    }
    add(places_.gradients, group.grad_dtype, group.whole_grad ? group.padded : group.owned_elements);
  }
  if (bytes > 0) {
    lanes_->space.reserve(bytes);
  }
}

void OffloadKeeper::fill(Kept& of, Stream& s) {
  if (std::none_of(kept_.begin(), kept_.end(), [](const auto& entry) { return entry.second.filled; })) {
    reserve_disk();
  }
  of.filled = true;
  ParamGroup& group = *of.group;
  const std::shared_ptr<Event> made = s.record();
  const auto move = [&](Place place, Tensor& from) {
    Slot slot(*lanes_, place, from.dtype(), from.elements());
    slot.changed(down(slot.open_empty(), from, made));
    slot.close();
    return slot;
  };
  if (group.away.state) {
    of.master = move(places_.states, group.master);
    for (ParamState& state : group.states) {
      of.states.push_back(move(places_.states, state.values));
      state.values = {};
    }
    group.master = {};
    if (group.tries) {
      make_trial(of);
    }
  }
  if (group.away.weight) {
    of.weight = move(places_.weights, group.whole_weight ? group.weight : group.owned_weight);
    group.weight = {};
    group.owned_weight = {};
    group.master = own_master(group) ? Tensor() : group.master;
    if (places_.after_gate && group.experts) {
      const MemoryScope as(lanes_->device, MemoryKind::weights);
      of.window.emplace(group, static_cast<std::size_t>(places_.pinned), compute_dtype(), *lanes_);
    }
  }
  if (group.away.grad) {
    Tensor& grad = group.whole_grad ? group.grad : group.owned_grad;
    of.grad.emplace(*lanes_, places_.gradients, group.grad_dtype, grad.elements());
    group.grad = {};
    group.owned_grad = {};
  }
  lanes_->down->record()->wait();  // one group at a time is in both places
  if (places_.lazy_experts && group.experts && !group.frozen) {
    of.lazy.emplace(group);
  }
}

// --- the hooks

// The traffic of the step: since the last one's.
void OffloadKeeper::metrics(std::map<std::string, double>& to) {
  const Traffic now = lanes_->traffic, before = std::exchange(told_, now);
  to["to_host_bytes"] = static_cast<double>(now.to_host - before.to_host);
  to["to_device_bytes"] = static_cast<double>(now.to_device - before.to_device);
  to["written_bytes"] = static_cast<double>(now.written - before.written);
  to["read_bytes"] = static_cast<double>(now.read - before.read);
  to["peak_host_bytes"] = static_cast<double>(lanes_->device.host_memory().peak_bytes);
  to["disk_bytes"] = static_cast<double>(disk_bytes());
  if (places_.speculative) {
    to["rollbacks"] = static_cast<double>(rollbacks_);
  }
}

void OffloadKeeper::acquire(ParamGroup& group, Held what, const HookContext& at) {
  if (lingering_ != nullptr && what != Held::saved) {
    close_states(*std::exchange(lingering_, nullptr));  // the checkpoint is written
  }
  Kept* const found = find(group);
  if (found == nullptr) {
    return;
  }
  Kept& of = *found;
  switch (what) {
    case Held::weight:
      if (group.away.weight) {
        acquire_weight(of, at);
      }
      break;
    case Held::grad:
      if (group.away.grad) {
        acquire_grad(of, at.stream);
      }
      break;
    case Held::whole_grad:
      if (group.away.grad) {
        acquire_whole_grad(of, at);
      }
      break;
    case Held::state: acquire_state(of, true, at); break;
    case Held::saved: acquire_state(of, false, at); break;
    case Held::trial: acquire_trial(of, at.stream); break;
  }
}

void OffloadKeeper::rows_of_experts(ParamGroup& group, std::span<const std::int64_t> rows, const HookContext& at) {
  Kept* const found = find(group);
  if (found == nullptr) {
    return;
  }
  if (found->lazy.has_value()) {
    make_up_for(*found, rows, at);
  }
  if (found->window.has_value()) {
    if (at.training) {
      found->window->chosen(at.micro_batch, rows);
    }
    bring_experts(*found, rows);
    at.stream.wait(found->arrived);
    set_on_host(*found, rows);
    plan_on_host(*found);
  }
}

void OffloadKeeper::release(ParamGroup& group, Held what, const HookContext& at) {
  Kept* const found = find(group);
  if (found == nullptr) {
    return;
  }
  Kept& of = *found;
  switch (what) {
    case Held::weight:
      if (group.away.weight) {
        release_weight(of);
      }
      break;
    case Held::grad:
      if (group.away.grad) {
        release_grad(of, at);
      }
      break;
    case Held::whole_grad:
      if (group.away.grad) {
        release_whole_grad(of);
      }
      break;
    case Held::state:
      if (of.filled) {
        release_state(of, true, at);
        if (of.counted && of.updated) {
          end_lazy_step(of, at);
        }
      } else {
        fill(of, at.stream);
      }
      break;
    case Held::saved: release_state(of, false, at); break;
    case Held::trial: release_trial(of); break;
  }
}

}  // namespace orthant::offload
