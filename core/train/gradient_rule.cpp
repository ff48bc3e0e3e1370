#include "core/train/gradient_rule.h"

#include <algorithm>

#include "core/plan/keeper_chain.h"

namespace orthant {

void finish_gradients(ParamStore& store, const Plan& plan, const HookContext& at) {
  plan.keepers().finish_sums(at);
  for (auto& group : store.groups()) {
    if (!group->summed && group->sum->size() > 1) {
      group->sum->all_reduce(group->grad, ReduceOp::sum, at.stream);
      group->summed = true;
    }
  }
  for (auto& group : store.groups()) {
    plan.keepers().whole_grads(*group, at);
  }
}

void gradient_sum_squares(const Tensor& out, ParamStore& store, Group& model, Stream& stream) {
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
  if (model.size() > 1) {
    model.all_reduce(out, ReduceOp::sum, stream);
  }
}

}  // namespace orthant
