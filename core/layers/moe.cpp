#include "core/layers/moe.h"

#include <numeric>
#include <tuple>

namespace orthant {
namespace {

constexpr Site enter{Region::experts, Side::enter}, leave{Region::experts, Side::leave};
constexpr Site router_enter{Region::router, Side::enter}, router_leave{Region::router, Side::leave};

std::vector<std::int32_t> values_of(const Tensor& counts, Stream& s) {
  std::vector<std::int32_t> host(static_cast<std::size_t>(counts.elements()));
  s.download(host.data(), counts);
  return host;
}

}  // namespace

MoeLayer::MoeLayer(const ParamStore& store, const std::string& stem, Plan& plan, int layer)
    : router_(store.ref(stem + ".gate.weight")), experts_(store, plan, layer), layer_(layer), layout_(plan) {
  if (plan.settings().moe.shared_experts > 0) {
    shared_.emplace(store, stem + ".shared_experts", plan.settings());
  }
}

GateConfig MoeLayer::gate_config(const StepContext& ctx) const {
  const MoeSettings& moe = ctx.settings().moe;
  return {.router = moe.router,
          .experts = moe.experts,
          .top_k = moe.top_k,
          .normalize_weights = moe.normalize_weights,
          .capacity_factor = moe.capacity_factor,
          .group_tokens = moe.group_tokens == 0 ? ctx.settings().data.sequence_length : moe.group_tokens,
          .drop_policy = moe.drop_policy};
}

RandomKey MoeLayer::key(const StepContext& ctx, Purpose purpose) const {
  return {ctx.settings().run.seed, purpose, static_cast<std::uint32_t>(layer_), ctx.step};
}

void MoeLayer::count(const StepContext& ctx, const std::vector<std::int32_t>& kept,
                     const std::vector<std::int32_t>& dropped) const {
  LayerCounters& counters = ctx.sums.of(layer_, ctx.settings().moe.experts);
  std::int64_t made = 0;
  for (std::size_t e = 0; e < kept.size(); ++e) {
    counters.kept[e] += kept[e];
    counters.load[e] += kept[e] + dropped[e];
    counters.dropped_by_capacity += dropped[e];
    made += kept[e] + dropped[e];
  }
  // Where the experts choose, what they chose is all there was to choose.
  const MoeSettings& moe = ctx.settings().moe;
  const std::int64_t choices = moe.router == RouterKind::expert_choice ? made : ctx.batch.whole_valid_count * moe.top_k;
  counters.choices += choices;
  counters.dropped_by_chance += choices - made;
}

void MoeLayer::Routing::save(Saved& to) const {
  for (const Tensor* t : {&logits, &probability, &expert, &weight, &chosen, &sent_weight, &row, &source}) {
    push(to, *t);
  }
  to.plans.push_back(plan);
}

MoeLayer::Routing MoeLayer::Routing::take(Saved& from) {
  Routing r;
  for (Tensor* t : {&r.source, &r.row, &r.sent_weight, &r.chosen, &r.weight, &r.expert, &r.probability, &r.logits}) {
    *t = pop(from);
  }
  r.plan = std::move(from.plans.back());
  from.plans.pop_back();
  return r;
}

Tensor MoeLayer::forward(const StepContext& ctx, const Tensor& n, std::optional<Routing>& decided, Saved& saved) const {
  const Tensor router_in = router_input(ctx, n);
  if (!decided.has_value()) {
    decided = route(ctx, router_in);
  }
  const Routing& routing = *decided;
  Tensor y = run_experts(ctx, n, routing, saved);
  if (ctx.training) {
    push(saved, router_in);
    routing.save(saved);
  }
  if (shared_.has_value()) {
    ctx.stream.add(y, shared_->forward(ctx, n, saved));
  }
  return y;
}

Tensor MoeLayer::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Tensor dn_shared = shared_.has_value() ? shared_->backward(ctx, dy, saved) : Tensor();
  const Routing routing = Routing::take(saved);
  const Tensor router_in = pop(saved);
  const auto [dn, dweight] = run_experts_backward(ctx, dy, routing, saved);
  route_backward(ctx, dn, dweight, routing, router_in);
  if (dn_shared.defined()) {
    ctx.stream.add(dn, dn_shared);
  }
  return dn;
}

Tensor MoeLayer::router_input(const StepContext& ctx, const Tensor& n) const {
  const Tensor router_in = ctx.plan.cross(router_enter, n, ctx.stream);
  const double jitter = ctx.settings().moe.jitter;
  if (!ctx.training || jitter <= 0) {
    return router_in;
  }
  Tensor noisy = ctx.device().empty(n.dtype(), router_in.shape());
  ctx.stream.jitter(noisy, router_in, layout_.take(Region::router, ctx.batch.whole_index, ctx.stream),
                    key(ctx, Purpose::jitter), static_cast<float>(jitter));
  return noisy;
}

MoeLayer::Routing MoeLayer::route(const StepContext& ctx, const Tensor& router_in) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const GateConfig gate = gate_config(ctx);
  const std::int64_t experts = gate.experts, k = gate.top_k;
  Routing r;
  Tensor own = device.empty(DType::f32, {router_in.dim(0), experts});
  s.gemm(own, router_in, router_.weight(), {.transpose_b = true});
  r.logits = layout_.gather(own, s);  // [T, E]
  const std::int64_t tokens = r.logits.dim(0), groups = tokens / gate.group_tokens;
  r.probability = device.empty(DType::f32, {tokens, experts});
  r.expert = device.empty(DType::i32, {tokens, k});
  r.weight = device.empty(DType::f32, {tokens, k});
  r.chosen = device.empty(DType::i32, {groups, experts});
  s.gate(r.probability, r.expert, r.weight, r.chosen, r.logits, ctx.batch.whole_valid, ctx.batch.whole_index,
         key(ctx, Purpose::second_expert), gate);
  if (ctx.training) {
    s.gate_losses(ctx.sums.balance, ctx.sums.z, r.probability, r.chosen, r.logits, ctx.batch.whole_valid, gate);
  }
  seat(ctx, r);
  return r;
}

// Capacity, the packed rows of this rank's tokens, and who gets them.
void MoeLayer::seat(const StepContext& ctx, Routing& r) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  auto dispatch = [&](const Tensor& expert, const Tensor& weight, const Tensor& valid, const GateConfig& gate) {
    r.row = device.empty(DType::i32, expert.shape());
    r.source = device.empty(DType::i32, {expert.elements(), 1});
    Tensor count_of = device.empty(DType::i32, {gate.experts}), dropped = device.empty(DType::i32, {gate.experts});
    s.dispatch_plan(r.row, r.source, count_of, dropped, expert, weight, valid, gate);
    return std::pair(values_of(count_of, s), values_of(dropped, s));
  };
  GateConfig gate = gate_config(ctx);
  auto [kept, dropped] = dispatch(r.expert, r.weight, ctx.batch.whole_valid, gate);
  if (ctx.training) {
    count(ctx, kept, dropped);
  }
  const Tensor weight = layout_.take(Region::experts, r.weight, s);  // [tokens_X, K]
  r.sent_weight = ctx.plan.cross(router_leave, weight, s);
  if (!layout_.alone()) {
    // Seats are decided: of the choices that have one, those of this rank's tokens.
    const Tensor expert = layout_.take(Region::experts, r.expert, s);
    s.keep_seated(expert, layout_.take(Region::experts, r.row, s));
    gate.router = RouterKind::topk;
    gate.capacity_factor = 0;
    gate.group_tokens = expert.dim(0);
    std::tie(kept, dropped) = dispatch(expert, weight, layout_.take(Region::experts, ctx.batch.whole_valid, s), gate);
  }
  const std::vector<std::int64_t> rows(kept.begin(), kept.end());
  r.source = r.source.rows(0, std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  r.plan = RoutedExperts::plan(ctx, rows);
}

Tensor MoeLayer::run_experts(const StepContext& ctx, const Tensor& n, const Routing& routing, Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const Tensor tokens = ctx.plan.cross(enter, n, s);  // [tokens_X, d]
  Tensor packed = device.empty(n.dtype(), {routing.source.dim(0), tokens.dim(1)});
  s.pack(packed, tokens, routing.source, ctx.settings().moe.top_k);
  const Tensor rows = experts_.forward(ctx, packed, routing.plan, saved);  // [R, d]
  Tensor y = device.empty(n.dtype(), tokens.shape());
  s.combine(y, rows, routing.row, routing.sent_weight, false);
  if (ctx.training) {
    push(saved, rows);
  }
  return ctx.plan.cross(leave, y, s);
}

std::pair<Tensor, Tensor> MoeLayer::run_experts_backward(const StepContext& ctx, const Tensor& dy,
                                                         const Routing& routing, Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const Tensor rows = pop(saved);                            // [R, d]
  const Tensor dy_here = ctx.plan.cross_back(leave, dy, s);  // [tokens_X, d]
  Tensor drows = device.empty(dy.dtype(), rows.shape());
  Tensor dweight = device.empty(DType::f32, routing.sent_weight.shape());
  s.combine_backward(drows, dweight, dy_here, rows, routing.row, routing.source, routing.sent_weight);
  const Tensor dpacked = experts_.backward(ctx, drows, routing.plan, saved);
  Tensor dtokens = device.empty(dy.dtype(), dy_here.shape());
  s.fill(dtokens, 0);
  s.pack_backward(dtokens, dpacked, routing.row);
  return {ctx.plan.cross_back(enter, dtokens, s), ctx.plan.cross_back(router_leave, dweight, s)};
}

void MoeLayer::route_backward(const StepContext& ctx, const Tensor& dn, const Tensor& dweight, const Routing& r,
                              const Tensor& router_in) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  // A row of dlogits depends on dweight's row alone, and this rank needs those of the tokens that it routes.
  const Tensor of_all = layout_.put(Region::experts, dweight, r.logits.dim(0), s);
  Tensor whole = device.empty(DType::f32, r.logits.shape());  // [T, E]
  s.gate_backward(whole, of_all, r.probability, r.expert, r.weight, r.chosen, r.logits, ctx.batch.whole_valid,
                  ctx.aux_scale, ctx.z_scale, gate_config(ctx));
  Tensor dlogits = layout_.take(Region::router, whole, s);  // [tokens_R, E]
  if (ctx.compute() != DType::f32) {
    Tensor narrow = device.empty(ctx.compute(), dlogits.shape());
    s.cast(narrow, dlogits);
    dlogits = narrow;
  }
  const Tensor d = linear_backward(ctx, dlogits, router_in, router_.weight(), router_.grad());
  const double jitter = ctx.settings().moe.jitter;
  if (jitter > 0) {
    s.jitter(d, d, layout_.take(Region::router, ctx.batch.whole_index, s), key(ctx, Purpose::jitter),
             static_cast<float>(jitter));
  }
  s.add(dn, ctx.plan.cross_back(router_enter, d, s));
}

}  // namespace orthant
