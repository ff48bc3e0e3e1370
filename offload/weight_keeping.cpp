// OffloadKeeper's weights: up a layer ahead or after the gate, dropped behind their layer.
#include <algorithm>

#include "keeper.h"

namespace orthant::offload {

// Before the gate has chosen in a forward pass there is nothing to fetch; a backward pass reads whom the forward read.
void OffloadKeeper::fetch(Kept& of, const HookContext& at) {
  const ParamGroup& group = *of.group;
  if (of.window.has_value()) {
    if (!of.fetched.defined()) {
      of.fetched = empty(compute_dtype(), group.padded);
      of.window->emptied();
    }
    if (at.pass == Pass::none) {
      bring_experts(of, {});
    } else if (at.pass == Pass::backward && of.window->knows(at.micro_batch)) {
      bring_experts(of, of.window->rows_of(at.micro_batch));
    }
    return;
  }
  if (of.fetched.defined()) {
    return;
  }
  const Tensor& host = of.weight->open();
  of.fetched = empty(host.dtype(), group.whole_weight ? group.padded : group.owned_elements);
  up(of.fetched, host, of.weight->ready());
  of.arrived = lanes_->up->record();
  of.weight->close();
}

// The groups that are acquired next, to the end of the next layer.
std::vector<int> OffloadKeeper::soon(const ParamGroup& now) const {
  std::vector<int> ids;
  int layer = now.layer, changes = 0;
  for (int id : order_.ahead()) {
    const int next = kept_.at(id).group->layer;
    changes += next != layer ? 1 : 0;
    layer = next;
    if (changes > 1) {
      break;
    }
    ids.push_back(id);
  }
  return ids;
}

void OffloadKeeper::acquire_weight(Kept& of, const HookContext& at) {
  ParamGroup& group = *of.group;
  order_.acquired(group.id, at.training);
  fetch(of, at);
  for (int id : soon(group)) {
    Kept& next = kept_.at(id);
    const bool changes = next.group->state_stream != nullptr;  // an early update has begun and not ended
    if (!changes && (!next.window.has_value() || at.pass == Pass::backward)) {
      fetch(next, at);
    }
  }
  if (of.arrived != nullptr) {
    at.stream.wait(of.arrived);
  }
  end_on_host(group);
  if (of.window.has_value() && at.pass == Pass::backward && of.window->knows(at.micro_batch)) {
    set_on_host(of, of.window->rows_of(at.micro_batch));
    plan_on_host(of);
  }
  group.owned_weight = of.fetched;
  if (group.whole_weight) {
    group.weight = of.fetched;
    group.owned_weight = of.fetched.slice(group.owned_begin, {group.owned_elements});
  }
}

void OffloadKeeper::drop_weight(Kept& of) {
  of.fetched = {};
  of.group->owned_weight = {};
  if (of.group->whole_weight) {
    of.group->weight = {};
  }
}

void OffloadKeeper::release_weight(Kept& of) {
  end_on_host(*of.group);
  of.planned_rows = {};
  of.planned_offsets = {};
  const std::vector<int> next = soon(*of.group);
  if (std::find(next.begin(), next.end(), of.group->id) == next.end()) {
    drop_weight(of);
  }
}

}  // namespace orthant::offload
