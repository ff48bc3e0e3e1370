// OffloadKeeper's gradients: down behind a layer's backward pass, used in the host's memory.
#include <algorithm>
#include <iterator>

#include "keeper.h"

namespace orthant::offload {

void OffloadKeeper::acquire_grad(Kept& of, Stream& s) {
  ParamGroup& group = *of.group;
  if (!group.whole_grad || group.grad.defined()) {
    return;
  }
  group.grad = empty(group.grad_dtype, group.padded);
  group.owned_grad = group.grad.slice(group.owned_begin, {group.owned_elements});
  of.grad_held = of.grad_held && !group.grad_empty;
  if (of.grad_held) {
    const Tensor& host = of.grad->open();
    up(group.grad, host, of.grad->ready());
    s.wait(lanes_->up->record());
    of.grad->close();
  } else if (group.padded > group.elements) {
    s.fill(group.grad.slice(group.elements, {group.padded - group.elements}), 0);
  }
}

// Where a shard is all that lasts, the sum goes there: it comes up for it.
void OffloadKeeper::grad_ready(ParamGroup& group, const HookContext& at) {
  Kept* const found = find(group);
  if (found == nullptr) {
    return;
  }
  Kept& of = *found;
  of.counted = of.lazy.has_value();
  of.updated = false;
  if (!group.away.grad) {
    return;
  }
  of.complete = true;
  if (group.whole_grad) {
    return;
  }
  group.owned_grad = empty(group.grad_dtype, group.owned_elements);
  if (of.grad_held) {
    const Tensor& host = of.grad->open();
    up(group.owned_grad, host, of.grad->ready());
    at.stream.wait(lanes_->up->record());
    of.grad->close();
  }
}

void OffloadKeeper::send_grad_down(Kept& of, const std::shared_ptr<Event>& after) {
  ParamGroup& group = *of.group;
  const Tensor& host = of.grad->open_empty();
  if (of.spent != nullptr) {
    lanes_->down->wait(of.spent);
  }
  if (!group.whole_grad || of.complete) {
    const std::int64_t begin = group.whole_grad ? group.owned_begin : 0;
    of.grad->changed(down(host.slice(begin, {group.owned_elements}), group.owned_grad, after));
  } else {
    of.grad->changed(down(host, group.grad, after));
  }
  leaving_.push_back(of.grad->ready());
  of.grad->close();
  of.grad_held = true;
  group.owned_grad = {};
  if (group.whole_grad) {
    group.grad = {};
  }
  // The device's memory is free when the copy is done: the rank does not run far ahead of that.
  while (leaving_.size() > 1) {
    leaving_.front()->wait();
    leaving_.pop_front();
  }
}

void OffloadKeeper::release_grad(Kept& of, const HookContext& at) {
  ParamGroup& group = *of.group;
  // A gradient that the forward pass makes, the head's, is added to by the backward pass that follows.
  if (!group.owned_grad.defined() || at.pass == Pass::forward) {
    return;
  }
  if (of.complete && group.sum->size() > 1 && group.sum_done == nullptr) {
    of.summed_late = true;
    return;
  }
  send_grad_down(of, of.complete && group.sum_done != nullptr ? group.sum_done : at.stream.record());
  of.complete = false;
}

void OffloadKeeper::finish_sums(const HookContext& at) {
  order_.end_step();
  leaving_.clear();
  for (auto& [id, of] : kept_) {
    if (of.counted) {
      agree_on_chosen(of, at.stream);
    }
    if (of.window.has_value()) {
      of.window->end_step();
    }
  }
}

void OffloadKeeper::acquire_whole_grad(Kept& of, const HookContext& at) {
  ParamGroup& group = *of.group;
  if (of.summed_late) {
    of.summed_late = false;
    send_grad_down(of, at.stream.record());
    of.complete = false;
  }
  const Tensor& host = of.grad->open();
  if (of.grad->ready() != nullptr) {
    lanes_->host->wait(of.grad->ready());
  }
  group.owned_grad = group.whole_grad ? host.slice(group.owned_begin, {group.owned_elements}) : host;
  group.grad_stream = lanes_->host.get();
  prefetch_grad(of, at);
}

void OffloadKeeper::release_whole_grad(Kept& of) {
  of.group->owned_grad = {};
  of.group->grad_stream = nullptr;
  of.grad->changed(lanes_->host->record());
  of.grad->close();
}

// In the order of the groups; an early update's next group has the backward pass of a layer's time.
void OffloadKeeper::prefetch_grad(const Kept& of, const HookContext& at) {
  const auto next = std::find_if(std::next(kept_.find(of.group->id)), kept_.end(),
                                 [](const auto& entry) { return entry.second.group->away.grad; });
  if (places_.gradients == Place::nvme && at.pass == Pass::none && next != kept_.end() && next->second.grad_held &&
      !next->second.summed_late && !next->second.updated) {
    next->second.grad->open();
  }
}

}  // namespace orthant::offload
