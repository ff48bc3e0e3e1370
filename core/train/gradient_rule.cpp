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
}

namespace {

// The sum so far, f64 [1], on whichever stream the next group's gradient lives: one sum in one order, wherever its
// addends are.
class RunningSum {
 public:
  RunningSum(Tensor out, Stream& main) : out_(std::move(out)), main_(main) { main_.fill(out_, 0); }

  const Tensor& on(Stream& home) {
    if (&home == &main_) {
      return back();
    }
    if (&home == home_) {
      return on_host_;
    }
    back();
    on_host_ = main_.device().host_empty(DType::f64, {1});
    main_.download(on_host_, out_);
    home.wait(main_.record());
    home_ = &home;
    return on_host_;
  }
  // On the main stream.
  const Tensor& back() {
    if (home_ != nullptr) {
      main_.wait(home_->record());
      main_.upload(out_, on_host_);
      home_ = nullptr;
    }
    return out_;
  }

 private:
  Tensor out_, on_host_;
  Stream& main_;
  Stream* home_ = nullptr;  // where the sum is; null: the main stream
};

// Neighbours that are counted alike are taken in one pass, within what this rank owns.
void add_squares(const Tensor& sum, const ParamGroup& group, Stream& home) {
  const std::int64_t end = group.owned_begin + group.owned_elements;
  std::int64_t run_begin = 0, run_end = 0;
  auto flush = [&] {
    const std::int64_t begin = std::max(run_begin, group.owned_begin), stop = std::min(run_end, end);
    if (begin < stop) {
      home.sum_squares(sum, group.owned_grad.slice(begin - group.owned_begin, {stop - begin}));
    }
  };
  for (const Param& p : group.params) {
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

}  // namespace

void whole_gradients(const Tensor& sum_squares, ParamStore& store, const Plan& plan, Group& model,
                     const HookContext& at) {
  RunningSum sum(sum_squares, at.stream);
  for (auto& group : store.groups()) {
    with_held(plan.keepers(), *group, Held::whole_grad, at, [&](Stream& home) {
      plan.keepers().whole_grads(*group, at);
      if (group->owner) {
        add_squares(sum.on(home), *group, home);
      }
    });
  }
  sum.back();
  if (model.size() > 1) {
    model.all_reduce(sum_squares, ReduceOp::sum, at.stream);
  }
}

}  // namespace orthant
