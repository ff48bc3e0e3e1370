#include "experts/moe_layer.h"

namespace orthant {

MoeLayer::MoeLayer(const ParamStore& store, const std::string& stem, Plan& plan, int layer)
    : router_(store, stem, plan, layer), experts_(store, stem, plan, layer) {}

Tensor MoeLayer::forward(const StepContext& ctx, const Tensor& n, std::optional<Routing>& decided, Saved& saved) const {
  const Tensor router_in = router_.input(ctx, n);
  if (!decided.has_value()) {
    decided = router_.route(ctx, router_in);
  }
  Tensor y = experts_.forward(ctx, n, *decided, saved);
  if (ctx.training) {
    push(saved, router_in);
    decided->save(saved);
  }
  experts_.add_shared(ctx, y, n, saved);
  return y;
}

Tensor MoeLayer::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Tensor dn_shared = experts_.shared_backward(ctx, dy, saved);
  const Routing routing = Routing::take(saved);
  const Tensor router_in = pop(saved);
  const auto [dn, dweight] = experts_.backward(ctx, dy, routing, saved);
  router_.backward(ctx, dn, dweight, routing, router_in);
  if (dn_shared.defined()) {
    ctx.stream.add(dn, dn_shared);
  }
  return dn;
}

}  // namespace orthant
