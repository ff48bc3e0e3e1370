#include "experts/moe_layer.h"

#include "experts/row_weights.h"

namespace orthant {

MoeLayer::MoeLayer(const ParamStore& store, Plan& plan, const Link& link)
    : router_(store, plan, link), experts_(store, link.router, plan, link.number) {}

Tensor MoeLayer::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor router_in = router_.input(ctx, n);
  ExpertDecisions* const kept = ctx.sums.decisions;
  const bool again = kept != nullptr && kept->again;
  Routing decided = again ? Routing::take(kept->kept) : router_.route(ctx, router_in);
  Tensor y = experts_.forward(ctx, n, decided, saved);
  if (kept != nullptr && !again) {
    decided.save(kept->kept);  // with the plan of its exchange, which is made on the way to the experts
  }
  const Tensor& copied = decided.copy_weight;
  if (copied.defined()) {
    ctx.stream.add(y, product(ctx, n.dtype(), n, spread_weights(ctx, copied, n.dim(1))));
  }
  if (ctx.training) {
    push(saved, copied.defined() ? n : Tensor());
    push(saved, router_in);
    decided.save(saved);
  }
  experts_.add_shared(ctx, y, n, saved);
  return y;
}

Tensor MoeLayer::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Tensor dn_shared = experts_.shared_backward(ctx, dy, saved);
  const Routing routing = Routing::take(saved);
  const Tensor router_in = pop(saved), n = pop(saved);
  const auto [dn, dweight] = experts_.backward(ctx, dy, routing, saved);
  Tensor dcopy_weight;
  if (const Tensor& copied = routing.copy_weight; copied.defined()) {
    ctx.stream.add(dn, product(ctx, dy.dtype(), dy, spread_weights(ctx, copied, dy.dim(1))));
    dcopy_weight = row_products(ctx, dy, n, copied.dim(1));
    ctx.stream.multiply(dcopy_weight, routing.copies);
  }
  router_.backward(ctx, dn, dweight, dcopy_weight, routing, router_in);
  if (dn_shared.defined()) {
    ctx.stream.add(dn, dn_shared);
  }
  return dn;
}

}  // namespace orthant
