// OffloadKeeper's weights: up a layer ahead, dropped behind it.
#include <algorithm>

#include "keeper.h"

namespace orthant::offload {

void OffloadKeeper::fetch(Kept& of) {
  if (of.fetched.defined()) {
    return;
  }
  const ParamGroup& group = *of.group;
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

void OffloadKeeper::acquire_weight(Kept& of, Stream& s) {
  ParamGroup& group = *of.group;
  order_.acquired(group.id);
  fetch(of);
  for (int id : soon(group)) {
    fetch(kept_.at(id));
  }
  s.wait(of.arrived);
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
  const std::vector<int> next = soon(*of.group);
  if (std::find(next.begin(), next.end(), of.group->id) == next.end()) {
    drop_weight(of);
  }
}

}  // namespace orthant::offload
