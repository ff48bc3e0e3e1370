#include "core/layers/entered.h"

namespace orthant {

void Entered::save(const StepContext& ctx, const Tensor& before, const Tensor& entered, Saved& saved) {
  const bool again = ctx.recompute != Recompute::full && before.elements() < entered.elements();
  saved.push(again ? before : Tensor());
  saved.push(again ? Tensor() : entered);
}

// The main stream has enqueued all earlier collectives of the boundary's group, and enqueues none before it waits.
Entered::Entered(const StepContext& ctx, Site site, bool read, Saved& saved) : main_(ctx.stream), x_(saved.pop()) {
  const Tensor before = saved.pop();
  if (!before.defined() || !read) {
    return;
  }
  Stream* const beside = ctx.sums.beside;
  if (beside == nullptr) {
    x_ = ctx.plan.cross(site, before, main_, ctx.space);
    return;
  }
  beside->wait(main_.record());
  x_ = ctx.plan.cross(site, before, *beside, ctx.space);
  ready_ = beside->record();
}

const Tensor& Entered::get() const {
  if (ready_ != nullptr) {
    main_.wait(ready_);
  }
  return x_;
}

Tensor linear_backward(const StepContext& ctx, const Tensor& dy, const Entered& x, const Tensor& w, const Tensor& dw) {
  const Tensor dx = linear_backward(ctx, dy, Tensor(), w, Tensor());
  if (dw.defined()) {
    ctx.stream.gemm(dw, dy, x.get(), {.transpose_a = true, .beta = 1});
  }
  return dx;
}

}  // namespace orthant
