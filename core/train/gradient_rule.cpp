#include "core/train/gradient_rule.h"

#include <algorithm>

namespace orthant {

void finish_gradients(ParamStore& store, const Plan& plan, Stream& stream) {
  for (const auto& keeper : plan.keepers()) {
    keeper->before_step(stream);
  }
  for (auto& group : store.groups()) {
    if (!group->summed && group->sum->size() > 1) {
      group->sum->all_reduce(group->grad, ReduceOp::sum, stream);
      group->summed = true;
    }
  }
}

void gradient_sum_squares(const Tensor& out, ParamStore& store, Group& world, Stream& stream) {
  stream.fill(out, 0);
  for (auto& group : store.groups()) {
    if (!group->owner) {
      continue;
    }
    // Neighbours that are counted alike are taken in one pass, within what this rank owns.
    const std::int64_t end = group->owned_begin + group->owned_elements;
    std::int64_t run_begin = 0, run_end = 0;
    auto flush = [&] {
      const std::int64_t begin = std::max(run_begin, group->owned_begin), stop = std::min(run_end, end);
      if (begin < stop) {
        stream.sum_squares(out, group->owned_grad.slice(begin - group->owned_begin, {stop - begin}));
      }
    };
    for (const Param& p : group->params) {
      if (!p.counted) {
        continue;
      }
      if (p.begin != run_end) {
        flush();
        run_begin = p.begin;
      }
      run_end = p.begin + p.elements();
    }
    flush();
  }
  if (world.size() > 1) {
    world.all_reduce(out, ReduceOp::sum, stream);
  }
}

}  // namespace orthant
