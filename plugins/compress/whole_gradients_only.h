// What every sum of this plugin asks of the keepers behind it.
#pragma once

#include <orthant/param_group.h>
#include <orthant/settings.h>

namespace orthant::compress {

// Errors: SettingError where a rank holds a shard of the group's gradient.
inline void refuse_shards(const ParamGroup& group) {
  if (!group.whole_grad && !group.frozen) {
    throw SettingError("plugins.compress.method",
                       fmt::format("compressed sums need whole gradients on every rank, and '{}' is sharded\nwrite "
                                   "zero = 0 or zero = 1 in [plugins.data]",
                                   group.name));
  }
}

}  // namespace orthant::compress
