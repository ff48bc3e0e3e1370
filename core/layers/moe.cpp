#include "core/layers/moe.h"

#include <algorithm>
#include <numeric>

namespace orthant {
namespace {

constexpr Site enter{Region::experts, Side::enter}, leave{Region::experts, Side::leave};
constexpr Site router_enter{Region::router, Side::enter};

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> offset(rows.size() + 1, 0);
  std::partial_sum(rows.begin(), rows.end(), offset.begin() + 1);
  return offset;
}

// Without a token exchange every expert is local and rows stay where they are.
ExchangePlan local_plan(std::vector<std::int64_t> rows) {
  return {rows, rows, rows};
}

}  // namespace

MoeLayer::MoeLayer(const ParamStore& store, const std::string& stem, const Plan& plan, int layer)
    : router_(store.ref(stem + ".gate.weight")), layer_(layer), activation_(plan.settings().model.activation) {
  const std::vector<ParamGroup*> groups = store.groups_of_layer(layer);
  const auto routed = std::find_if(groups.begin(), groups.end(), [](const ParamGroup* g) { return g->experts; });
  require(routed != groups.end(), "this rank holds no routed expert of layer {}", layer);
  experts_ = *routed;
  const std::size_t in_matrices = activation_ == Activation::swiglu ? 2 : 1;
  local_experts_ = static_cast<std::int64_t>(experts_->params.size() / (in_matrices + 1));
  width_ = experts_->params.front().size[0];
  hidden_ = width_ * static_cast<std::int64_t>(in_matrices);
  if (plan.settings().moe.shared_experts > 0) {
    shared_.emplace(store, stem + ".shared_experts", plan.settings());
  }
}

MoeLayer::Weights MoeLayer::view(const Tensor& flat) const {
  const std::int64_t d = experts_->params.front().size[1];
  return {flat.slice(0, {local_experts_, hidden_, d}),
          flat.slice(local_experts_ * hidden_ * d, {local_experts_, d, width_})};
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
  const std::int64_t choices = ctx.batch.valid_count * ctx.settings().moe.top_k;
  std::int64_t made = 0;
  for (std::size_t e = 0; e < kept.size(); ++e) {
    counters.kept[e] += kept[e];
    counters.load[e] += kept[e] + dropped[e];
    counters.dropped_by_capacity += dropped[e];
    made += kept[e] + dropped[e];
  }
  counters.choices += choices;
  counters.dropped_by_chance += choices - made;
}

Tensor MoeLayer::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const GateConfig gate = gate_config(ctx);
  const std::int64_t tokens = n.dim(0), d = n.dim(1), experts = gate.experts, k = gate.top_k;
  const std::int64_t groups = tokens / gate.group_tokens;

  Tensor router_in = ctx.plan.cross(router_enter, n, s);
  const double jitter = ctx.settings().moe.jitter;
  if (ctx.training && jitter > 0) {
    Tensor noisy = device.empty(n.dtype(), n.shape());
    s.jitter(noisy, router_in, ctx.rows_in(Region::router, ctx.batch.index), key(ctx, Purpose::jitter),
             static_cast<float>(jitter));
    router_in = noisy;
  }
  Tensor logits = device.empty(DType::f32, {tokens, experts});
  s.gemm(logits, router_in, router_.weight(), {.transpose_b = true});
  Tensor probability = device.empty(DType::f32, {tokens, experts});
  Tensor expert = device.empty(DType::i32, {tokens, k}), weight = device.empty(DType::f32, {tokens, k});
  Tensor chosen = device.empty(DType::i32, {groups, experts});
  s.gate(probability, expert, weight, chosen, logits, ctx.batch.valid, ctx.batch.index,
         key(ctx, Purpose::second_expert), gate);
  if (ctx.training) {
    s.gate_losses(ctx.sums.balance, ctx.sums.z, probability, chosen, logits, ctx.batch.valid, gate);
  }

  Tensor row = device.empty(DType::i32, {tokens, k}), source = device.empty(DType::i32, {tokens * k, 1});
  Tensor count_of = device.empty(DType::i32, {experts}), dropped = device.empty(DType::i32, {experts});
  s.dispatch_plan(row, source, count_of, dropped, expert, weight, ctx.batch.valid, gate);
  std::vector<std::int32_t> kept(static_cast<std::size_t>(experts)), lost(kept.size());
  s.download(kept.data(), count_of);
  s.download(lost.data(), dropped);
  if (ctx.training) {
    count(ctx, kept, lost);
  }
  const std::vector<std::int64_t> rows_of(kept.begin(), kept.end());
  const std::int64_t rows = std::accumulate(rows_of.begin(), rows_of.end(), std::int64_t{0});
  source = source.rows(0, rows);

  Tensor packed = device.empty(n.dtype(), {rows, d});
  s.pack(packed, n, source, k);
  TokenExchange* exchange = ctx.plan.exchange();
  const ExchangePlan plan = exchange == nullptr ? local_plan(rows_of) : exchange->plan(rows_of, s);
  Tensor x = exchange == nullptr ? packed : exchange->to_experts(packed, plan, s);  // [R', d]
  x = ctx.plan.cross(enter, x, s);
  const std::vector<std::int64_t> offset = offsets_of(plan.local);
  const Weights w = view(experts_->weight);
  Tensor h = device.empty(n.dtype(), {x.dim(0), hidden_});
  s.grouped_gemm(h, x, w.in, offset, {.transpose_b = true});
  Tensor a = device.empty(n.dtype(), {x.dim(0), width_});
  s.activation(a, h, activation_);
  Tensor out = device.empty(n.dtype(), {x.dim(0), d});
  s.grouped_gemm(out, a, w.out, offset, {.transpose_b = true});
  out = ctx.plan.cross(leave, out, s);
  const Tensor back = exchange == nullptr ? out : exchange->to_tokens(out, plan, s);  // [R, d]
  Tensor y = device.empty(n.dtype(), {tokens, d});
  s.combine(y, back, row, weight, false);

  if (ctx.training) {
    for (Tensor* t : {&router_in, &logits, &probability, &expert, &weight, &chosen, &row, &source, &x, &h, &a}) {
      push(saved, *t);
    }
    push(saved, back);
    saved.plans.push_back(plan);
  }
  if (shared_.has_value()) {
    s.add(y, shared_->forward(ctx, n, saved));
  }
  return y;
}

Tensor MoeLayer::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const GateConfig gate = gate_config(ctx);
  Tensor dn;  // [T, d]
  if (shared_.has_value()) {
    dn = shared_->backward(ctx, dy, saved);
  } else {
    dn = device.empty(dy.dtype(), dy.shape());
    s.fill(dn, 0);
  }
  const ExchangePlan plan = std::move(saved.plans.back());
  saved.plans.pop_back();
  const Tensor back = pop(saved), a = pop(saved), h = pop(saved), x = pop(saved), source = pop(saved), row = pop(saved);
  const Tensor chosen = pop(saved), weight = pop(saved), expert = pop(saved), probability = pop(saved);
  const Tensor logits = pop(saved), router_in = pop(saved);

  Tensor dback = device.empty(dy.dtype(), back.shape());      // [R, d]
  Tensor dweight = device.empty(DType::f32, weight.shape());  // [T, K]
  s.combine_backward(dback, dweight, dy, back, row, source, weight);
  TokenExchange* exchange = ctx.plan.exchange();
  Tensor dout = exchange == nullptr ? dback : exchange->to_experts(dback, plan, s);  // [R', d]
  dout = ctx.plan.cross_back(leave, dout, s);
  const std::vector<std::int64_t> offset = offsets_of(plan.local);
  const Weights w = view(experts_->weight), g = view(experts_->grad);
  // The expert group's gradients are nothing but these products: the first ones overwrite what is there.
  const float beta = experts_->grad_empty ? 0.0f : 1.0f;
  Tensor da = device.empty(dy.dtype(), a.shape());
  s.grouped_gemm(da, dout, w.out, offset, {});
  s.grouped_gemm_tn(g.out, dout, a, offset, beta);
  Tensor dh = device.empty(dy.dtype(), h.shape());
  s.activation_backward(dh, da, h, activation_);
  Tensor dx = device.empty(dy.dtype(), x.shape());
  s.grouped_gemm(dx, dh, w.in, offset, {});
  s.grouped_gemm_tn(g.in, dh, x, offset, beta);
  dx = ctx.plan.cross_back(enter, dx, s);
  const Tensor dpacked = exchange == nullptr ? dx : exchange->to_tokens(dx, plan, s);
  s.pack_backward(dn, dpacked, row);

  Tensor dlogits = device.empty(DType::f32, logits.shape());  // [T, E]
  s.gate_backward(dlogits, dweight, probability, expert, weight, chosen, logits, ctx.batch.valid, ctx.aux_scale,
                  ctx.z_scale, gate);
  Tensor dlogits_f = dlogits;
  if (ctx.compute() != DType::f32) {
    dlogits_f = device.empty(ctx.compute(), dlogits.shape());
    s.cast(dlogits_f, dlogits);
  }
  const Tensor drouter_in = linear_backward(ctx, dlogits_f, router_in, router_.weight(), router_.grad());
  const double jitter = ctx.settings().moe.jitter;
  if (ctx.training && jitter > 0) {
    s.jitter(drouter_in, drouter_in, ctx.rows_in(Region::router, ctx.batch.index), key(ctx, Purpose::jitter),
             static_cast<float>(jitter));
  }
  s.add(dn, ctx.plan.cross_back(router_enter, drouter_in, s));
  return dn;
}

}  // namespace orthant
