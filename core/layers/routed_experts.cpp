#include "core/layers/routed_experts.h"

#include <algorithm>
#include <numeric>

namespace orthant {

RoutedExperts::RoutedExperts(const ParamStore& store, const Plan& plan, int layer)
    : activation_(plan.settings().model.activation) {
  const std::vector<ParamGroup*> groups = store.groups_of_layer(layer);
  const auto routed = std::find_if(groups.begin(), groups.end(), [](const ParamGroup* g) { return g->experts; });
  require(routed != groups.end(), "this rank holds no routed expert of layer {}", layer);
  group_ = *routed;
  const std::size_t in_matrices = activation_ == Activation::swiglu ? 2 : 1;
  local_experts_ = static_cast<std::int64_t>(group_->params.size() / (in_matrices + 1));
  width_ = group_->params.front().size[0];
  hidden_ = width_ * static_cast<std::int64_t>(in_matrices);
  if (plan.exchange() != nullptr && plan.exchange()->chunks() > 1) {
    side_ = plan.device().make_side_stream();
  }
}

RoutedExperts::Weights RoutedExperts::view(const Tensor& flat) const {
  const std::int64_t d = group_->params.front().size[1];
  return {flat.slice(0, {local_experts_, hidden_, d}),
          flat.slice(local_experts_ * hidden_ * d, {local_experts_, d, width_})};
}

ExchangePlan RoutedExperts::plan(const StepContext& ctx, const std::vector<std::int64_t>& rows_of_expert) {
  TokenExchange* exchange = ctx.plan.exchange();
  return exchange == nullptr ? ExchangePlan{rows_of_expert, rows_of_expert, rows_of_expert, {}}
                             : exchange->plan(rows_of_expert, ctx.stream);
}

RoutedExperts::Chunk RoutedExperts::chunk(const ExchangePlan& plan, int number, int chunks) const {
  require(local_experts_ % chunks == 0, "{} experts of a rank do not divide into {} chunks", local_experts_, chunks);
  Chunk c;
  c.number = number;
  c.experts.count = local_experts_ / chunks;
  c.experts.begin = c.experts.count * number;
  const auto first = plan.local.begin() + c.experts.begin, last = first + c.experts.count;
  c.rows.begin = std::accumulate(plan.local.begin(), first, std::int64_t{0});
  c.offset = {0};
  std::partial_sum(first, last, std::back_inserter(c.offset));
  c.rows.count = c.offset.back();
  return c;
}

void RoutedExperts::travel(const StepContext& ctx, const ExchangePlan& plan, const Tensor& x, const Tensor& sent,
                           const Tensor& returned, const Tensor& y,
                           const std::function<void(const Chunk&)>& work) const {
  Stream& s = ctx.stream;
  TokenExchange* exchange = ctx.plan.exchange();
  if (exchange == nullptr) {
    work(chunk(plan, 0, 1));
    return;
  }
  const int chunks = exchange->chunks();
  Stream& way = side_ == nullptr ? s : *side_;
  std::shared_ptr<Event> arrived;
  auto fetch = [&](int number) {
    exchange->to_experts(chunk(plan, number, chunks).of(x), sent, plan, number, way);
    arrived = way.record();
  };
  way.wait(s.record());
  fetch(0);
  for (int number = 0; number < chunks; ++number) {
    const Chunk now = chunk(plan, number, chunks);
    const std::shared_ptr<Event> ready = arrived;
    if (number + 1 < chunks) {
      fetch(number + 1);
    }
    s.wait(ready);
    work(now);
    way.wait(s.record());
    exchange->to_tokens(returned, now.of(y), plan, number, way);
  }
  s.wait(way.record());
}

Tensor RoutedExperts::forward(const StepContext& ctx, const Tensor& packed, const ExchangePlan& plan,
                              Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const bool here = ctx.plan.exchange() == nullptr;
  const std::int64_t rows = std::accumulate(plan.local.begin(), plan.local.end(), std::int64_t{0}), d = packed.dim(1);
  const Weights w = view(group_->weight);
  const Tensor x = here ? packed : device.empty(packed.dtype(), {rows, d});  // [R', d]
  const Tensor h = device.empty(packed.dtype(), {rows, hidden_}), a = device.empty(packed.dtype(), {rows, width_});
  const Tensor y = device.empty(packed.dtype(), {rows, d});
  const Tensor out = here ? y : device.empty(packed.dtype(), packed.shape());  // [R, d]
  travel(ctx, plan, x, packed, out, y, [&](const Chunk& c) {
    s.grouped_gemm(c.of(h), c.of(x), c.weights(w.in), c.offset, {.transpose_b = true});
    s.activation(c.of(a), c.of(h), activation_);
    s.grouped_gemm(c.of(y), c.of(a), c.weights(w.out), c.offset, {.transpose_b = true});
  });
  if (ctx.training) {
    push(saved, x);
    push(saved, h);
    if (!recomputes_activations(ctx.settings())) {
      push(saved, a);
    }
  }
  return out;
}

Tensor RoutedExperts::backward(const StepContext& ctx, const Tensor& d_out, const ExchangePlan& plan,
                               Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const bool again = recomputes_activations(ctx.settings());
  Tensor a = again ? Tensor() : pop(saved);  // [R', f]
  const Tensor h = pop(saved), x = pop(saved);
  if (again) {
    a = device.empty(h.dtype(), {h.dim(0), width_});
  }
  const bool here = ctx.plan.exchange() == nullptr;
  const Weights w = view(group_->weight), g = view(group_->grad);
  const Tensor dy = here ? d_out : device.empty(d_out.dtype(), x.shape());  // [R', d]
  const Tensor da = device.empty(d_out.dtype(), a.shape()), dh = device.empty(d_out.dtype(), h.shape());
  const Tensor dx = device.empty(d_out.dtype(), x.shape());
  const Tensor d_packed = here ? dx : device.empty(d_out.dtype(), d_out.shape());  // [R, d]
  // The group's gradients are nothing but these products: the first ones overwrite what is there.
  const float beta = group_->grad_empty ? 0.0f : 1.0f;
  travel(ctx, plan, dy, d_out, d_packed, dx, [&](const Chunk& c) {
    if (again) {
      s.activation(c.of(a), c.of(h), activation_);
    }
    s.grouped_gemm(c.of(da), c.of(dy), c.weights(w.out), c.offset, {});
    s.grouped_gemm_tn(c.weights(g.out), c.of(dy), c.of(a), c.offset, beta);
    s.activation_backward(c.of(dh), c.of(da), c.of(h), activation_);
    s.grouped_gemm(c.of(dx), c.of(dh), c.weights(w.in), c.offset, {});
    s.grouped_gemm_tn(c.weights(g.in), c.of(dh), c.of(x), c.offset, beta);
  });
  return d_packed;
}

}  // namespace orthant
