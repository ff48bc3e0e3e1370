#include "whole_sums.h"

#include <algorithm>

#include <orthant/group.h>
#include <orthant/settings.h>

namespace orthant::compress {

bool WholeSums::sum_grads(ParamGroup& group, const HookContext& at) {
  if (at.step < warm_up_ || !takes(group)) {
    return false;
  }
  if (group.scattered) {
    late_.push_back(&group);
  } else {
    sum(group, at);
  }
  return true;
}

void WholeSums::finish_sums(const HookContext& at) {
  std::sort(late_.begin(), late_.end(), [](const ParamGroup* a, const ParamGroup* b) { return a->id < b->id; });
  for (ParamGroup* group : late_) {
    sum(*group, at);
  }
  late_.clear();
}

void WholeSums::refuse_shards(const ParamGroup& group) {
  if (!group.whole_grad && !group.frozen) {
    throw SettingError("plugins.compress.method",
                       fmt::format("compressed sums need whole gradients on every rank, and '{}' is sharded\nwrite "
                                   "zero = 0 or zero = 1 in [plugins.data]",
                                   group.name));
  }
}

bool WholeSums::takes(const ParamGroup& group) const {
  return group.sum->size() > 1;
}

}  // namespace orthant::compress
