#include "core/layers/head.h"

#include "core/layers/output_rows.h"
#include "core/objectives/cross_entropy.h"

namespace orthant {

HeadLayer::HeadLayer(const ParamStore& store, Plan& plan, const Link& link)
    : norm_(store, "model.norm", plan.settings()),
      output_(store, plan),
      groups_(store.groups_of_layer(link.number)),
      passes_(!link.passes.empty()) {
  if (objective_of(plan.settings()).over_sequences(plan.settings())) {
    sequences_ = sequence_group(plan);
  }
}

Tensor HeadLayer::normed(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  return ctx.cross(head_enter, norm_.forward(ctx, x, saved));
}

Tensor HeadLayer::logits(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  return logits_of(ctx, normed(ctx, x, saved), 0, x.dim(0));
}

Bundle HeadLayer::forward(const StepContext& ctx, const Bundle& x, Saved& saved) {
  const Tensor h = norm_.forward(ctx, x.front(), saved);
  const Tensor n = ctx.cross(head_enter, h);
  MatrixRows rows(ctx, output_, n, sequences_);
  Tensor dn;
  if (ctx.sums.objectives.empty()) {
    cross_entropy(
        {.label = ctx.batch.label, .sum = ctx.sums.loss, .each = ctx.sums.token_loss, .scale = ctx.loss_scale}, rows,
        ctx);
    dn = rows.gradient("cross_entropy");
  } else {
    dn = run_objective(ctx, 0, rows);
  }
  if (ctx.training) {
    saved.push(ctx.cross_back(head_enter, dn));
  }
  return passes_ ? Bundle{h} : Bundle();
}

Bundle HeadLayer::backward(const StepContext& ctx, const Bundle& dy, Saved& saved) {
  const Tensor dh = saved.pop();
  if (!dy.empty()) {
    ctx.stream.add(dh, dy.front());
  }
  Tensor dx = ctx.device().empty(dh.dtype(), dh.shape());
  ctx.stream.fill(dx, 0);
  norm_.backward(ctx, dx, dh, saved);
  return {dx};
}

}  // namespace orthant
