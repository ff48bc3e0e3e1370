#include "experts/experts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "core/layers/entered.h"
#include "core/layers/wanted_gradients.h"
#include "core/plan/keeper_chain.h"
#include "experts/host_rows.h"

namespace orthant {
namespace {

constexpr Site enter{Region::experts, Side::enter}, leave{Region::experts, Side::leave};

// A tensor that travels.
Tensor exchanged_rows(const StepContext& ctx, DType dtype, Shape shape) {
  const MemoryScope as(ctx.device(), MemoryKind::exchange);
  return ctx.device().empty(dtype, shape);
}

}  // namespace

Experts::Experts(const ParamStore& store, const std::string& stem, const Plan& plan, int layer)
    : activation_(plan.settings().model.activation) {
  const std::vector<ParamGroup*> groups = store.groups_of_layer(layer);
  const auto routed = std::find_if(groups.begin(), groups.end(), [](const ParamGroup* g) { return g->experts; });
  require(routed != groups.end(), "this rank holds no routed expert of layer {}", layer);
  group_ = *routed;
  const std::size_t in_matrices = is_gated(activation_) ? 2 : 1;
  local_experts_ = static_cast<std::int64_t>(group_->params.size() / (in_matrices + 1));
  width_ = group_->params.front().size[0];
  hidden_ = width_ * static_cast<std::int64_t>(in_matrices);
  if (plan.settings().moe.expert_bias) {
    biases_.emplace(store, group_->params, local_experts_, hidden_);
  }
  TokenExchange* const exchange = plan.exchange();
  if (exchange != nullptr && (exchange->chunks() > 1 || (plan.device().asynchronous() && !exchange->equal_blocks()))) {
    side_ = plan.device().make_side_stream();
  }
  if (plan.settings().moe.shared_experts > 0) {
    shared_.emplace(store, stem, plan.settings());
  }
}

Tensor Experts::forward(const StepContext& ctx, const Tensor& n, Routing& routing, Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  Dispatch& to = routing.dispatch;
  if (ctx.plan.exchange() == nullptr) {
    const Tensor tokens = ctx.cross(enter, n);  // [tokens_X, d]
    const Tensor y = device.empty(n.dtype(), tokens.shape());
    tell_rows(ctx, routing);
    if (ctx.training) {
      Entered::save(ctx, n, tokens, saved);
    }
    forward_here(ctx, y, tokens, to, saved);
    return ctx.cross(leave, y);
  }
  Tensor tokens, packed;
  const auto pack = [&] {
    tokens = ctx.cross(enter, n);
    packed = exchanged_rows(ctx, n.dtype(), {to.source.dim(0), tokens.dim(1)});
    s.pack(packed, tokens, to.row, to.source);
  };
  if (routing.unplanned.defined()) {
    routing.plan = plan(ctx, std::exchange(routing.unplanned, {}), pack);
    const std::vector<std::int64_t>& send = routing.plan.send;
    to.source = to.source.rows(0, std::accumulate(send.begin(), send.end(), std::int64_t{0}));
    packed = packed.rows(0, to.source.dim(0));
  } else {
    pack();
  }
  const Tensor y = device.empty(n.dtype(), tokens.shape());
  tell_rows(ctx, routing);
  const Tensor rows = exchanged(ctx, packed, routing.plan, saved);  // [R, d]
  s.combine(y, rows, to.row, to.weight, false);
  return ctx.cross(leave, y);
}

Experts::Gradients Experts::backward(const StepContext& ctx, const Tensor& dy, const Routing& routing,
                                     Saved& saved) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const Dispatch& to = routing.dispatch;
  const Tensor dy_here = ctx.cross_back(leave, dy);  // [tokens_X, d]
  Tensor dweight = device.empty(DType::f32, to.weight.shape()), dtokens = device.empty(dy.dtype(), dy_here.shape());
  if (ctx.plan.exchange() == nullptr) {
    backward_here(ctx, dtokens, dweight, dy_here, to, saved);
  } else {
    // A choice's weight is to its packed row what a token's row is with one choice a token.
    const std::int64_t rows = to.source.dim(0), choices = to.weight.elements();
    const Tensor packed = exchanged_rows(ctx, dy.dtype(), {rows, dy.dim(1)});
    const Tensor weight = exchanged_rows(ctx, DType::f32, {rows, 1});
    s.pack(packed, dy_here, to.row, to.source);
    s.pack(weight, to.weight.view({choices, 1}), to.row.view({choices, 1}), to.source);
    const Gradients back = exchanged_backward(ctx, packed, weight, routing.plan, saved);
    s.pack_backward(dtokens, back.n, to.row, false);
    s.pack_backward(dweight.view({choices, 1}), back.weight, to.row.view({choices, 1}), false);
  }
  return {ctx.cross_back(enter, dtokens), dweight};
}

void Experts::add_shared(const StepContext& ctx, const Tensor& y, const Tensor& n, Saved& saved) const {
  if (shared_.has_value()) {
    shared_->add(ctx, y, n, saved);
  }
}

Tensor Experts::shared_backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  return shared_.has_value() ? shared_->backward(ctx, dy, saved) : Tensor();
}

void Experts::tell_rows(const StepContext& ctx, const Routing& routing) const {
  if (!ctx.plan.keepers().reads_rows()) {
    return;
  }
  std::vector<std::int64_t> rows = routing.plan.local;
  if (ctx.plan.exchange() == nullptr) {
    std::vector<std::int32_t> offset(static_cast<std::size_t>(local_experts_) + 1);
    ctx.stream.download(offset.data(), routing.dispatch.offset);
    rows.resize(static_cast<std::size_t>(local_experts_));
    std::transform(offset.begin() + 1, offset.end(), offset.begin(), rows.begin(), std::minus<>());
  }
  ctx.plan.keepers().rows_of_experts(*group_, rows, hook_context(ctx, Pass::forward));
}

Experts::Weights Experts::view(const Tensor& flat) const {
  const std::int64_t d = group_->params.front().size[1];
  return {flat.slice(0, {local_experts_, hidden_, d}),
          flat.slice(local_experts_ * hidden_ * d, {local_experts_, d, width_})};
}

void Experts::with_products(const StepContext& ctx, const std::function<void(Stream&)>& work) const {
  if (group_->on_host.has_value()) {
    HostRowsStream stream(ctx.stream, *group_);
    work(stream);
  } else {
    work(ctx.stream);
  }
}

void Experts::forward_here(const StepContext& ctx, const Tensor& y, const Tensor& x, const Dispatch& dispatch,
                           Saved& saved) const {
  const Tensor h = ctx.device().empty(x.dtype(), {dispatch.source.dim(0), hidden_});
  if (biases_.has_value()) {
    forward_rows(ctx, y, h, x, dispatch);
  } else {
    const Weights w = view(group_->weight);
    with_products(ctx, [&](Stream& s) { s.expert_ffn(y, h, x, w.in, w.out, dispatch, activation_); });
  }
  if (ctx.training) {
    push(saved, h);
  }
}

void Experts::forward_rows(const StepContext& ctx, const Tensor& y, const Tensor& h, const Tensor& x,
                           const Dispatch& to) const {
  const Weights w = view(group_->weight);
  const Range all{0, local_experts_};
  const Tensor rows = ctx.device().empty(x.dtype(), {h.dim(0), x.dim(1)});  // of x, then of y
  const Tensor a = ctx.device().empty(x.dtype(), {h.dim(0), width_});
  ctx.stream.pack(rows, x, to.row, to.source);
  with_products(ctx, [&](Stream& s) { s.grouped_gemm(h, rows, w.in, to.offset, {.transpose_b = true}); });
  biases_->add_in(ctx, h, to.offset, all);
  ctx.stream.activation(a, h, activation_);
  with_products(ctx, [&](Stream& s) { s.grouped_gemm(rows, a, w.out, to.offset, {.transpose_b = true}); });
  biases_->add_out(ctx, rows, to.offset, all);
  ctx.stream.combine(y, rows, to.row, to.weight, false);
}

void Experts::backward_rows(const StepContext& ctx, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                            const Entered& x, const Tensor& h, const Dispatch& to) const {
  Device& device = ctx.device();
  Stream& main = ctx.stream;
  const bool wanted = wants_gradients(*group_);
  const Weights w = view(group_->weight), g = wanted ? view(group_->grad) : Weights();
  const std::int64_t rows = h.dim(0), choices = to.weight.elements();
  const Tensor packed = device.empty(dy.dtype(), {rows, dy.dim(1)});  // of dy, then of x, then of dx
  const Tensor dh = device.empty(dy.dtype(), h.shape());
  const Tensor da = device.empty(dy.dtype(), {rows, width_}), a = device.empty(dy.dtype(), da.shape());
  main.pack(packed, dy, to.row, to.source);
  with_products(ctx, [&](Stream& s) { s.grouped_gemm(da, packed, w.out, to.offset, {}); });
  main.weighted_activation_backward(dh, a, dweight, da, h, to.weight, to.source, activation_);
  if (wanted) {
    main.grouped_gemm_tn(g.out, packed, a, to.offset, beta());
  }
  if (biases_.has_value()) {
    const Tensor weight = device.empty(DType::f32, {rows, 1}), of_rows = device.empty(DType::f32, {rows, 1});
    const Tensor row = to.row.view({choices, 1});
    main.pack(weight, to.weight.view({choices, 1}), row, to.source);
    biases_->backward(ctx, of_rows, dh, packed, weight, to.offset, {0, local_experts_});
    main.pack_backward(dweight.view({choices, 1}), of_rows, row, true);
  }
  if (wanted) {
    main.pack(packed, x.get(), to.row, to.source);
    main.grouped_gemm_tn(g.in, dh, packed, to.offset, beta());
  }
  with_products(ctx, [&](Stream& s) { s.grouped_gemm(packed, dh, w.in, to.offset, {}); });
  main.pack_backward(dx, packed, to.row, false);
}

void Experts::backward_here(const StepContext& ctx, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                            const Dispatch& dispatch, Saved& saved) const {
  const Tensor h = pop(saved);
  const Entered entered(ctx, enter, wants_gradients(*group_), saved);
  if (biases_.has_value() || !wants_gradients(*group_)) {
    backward_rows(ctx, dx, dweight, dy, entered, h, dispatch);
    return;
  }
  const Tensor& x = entered.get();
  const Weights w = view(group_->weight), g = view(group_->grad);
  with_products(ctx, [&](Stream& s) {
    s.expert_ffn_backward(dx, dweight, g.in, g.out, dy, x, h, w.in, w.out, dispatch, activation_, beta());
  });
}

float Experts::beta() const {
  return group_->grad_empty ? 0.0f : 1.0f;
}

Experts::Chunk Experts::chunk(const ExchangePlan& plan, int number, int chunks, Stream& s) const {
  require(local_experts_ % chunks == 0, "{} experts of a rank do not divide into {} chunks", local_experts_, chunks);
  Chunk c;
  c.number = number;
  c.experts.count = local_experts_ / chunks;
  c.experts.begin = c.experts.count * number;
  const auto first = plan.local.begin() + c.experts.begin, last = first + c.experts.count;
  c.rows.begin = std::accumulate(plan.local.begin(), first, std::int64_t{0});
  std::vector<std::int32_t> offset = {0};
  std::partial_sum(first, last, std::back_inserter(offset));
  c.rows.count = offset.back();
  c.offset = s.device().empty(DType::i32, {static_cast<std::int64_t>(offset.size())});
  s.upload(c.offset, offset.data());
  return c;
}

ExchangePlan Experts::plan(const StepContext& ctx, const Tensor& counts, const std::function<void()>& meanwhile) const {
  if (!ctx.device().asynchronous()) {
    return ctx.plan.exchange()->plan(counts, ctx.stream, meanwhile);
  }
  side_->wait(ctx.stream.record());
  return ctx.plan.exchange()->plan(counts, *side_, meanwhile);
}

void Experts::travel(const StepContext& ctx, const ExchangePlan& plan, std::span<const Way> there,
                     std::span<const Way> back, const std::function<void(const Chunk&)>& work) const {
  Stream& s = ctx.stream;
  TokenExchange& exchange = *ctx.plan.exchange();
  const int count = exchange.chunks();
  std::vector<Chunk> chunks;
  for (int number = 0; number < count; ++number) {
    chunks.push_back(chunk(plan, number, count, s));
  }
  Stream& way = count == 1 ? s : *side_;
  std::shared_ptr<Event> arrived;
  auto fetch = [&](const Chunk& c) {
    const MemoryScope as(ctx.device(), MemoryKind::exchange);
    for (const Way& w : there) {
      exchange.to_experts(c.of(w.to), w.from, plan, c.number, way);
    }
    arrived = way.record();
  };
  way.wait(s.record());
  fetch(chunks.front());
  for (const Chunk& now : chunks) {
    const std::shared_ptr<Event> ready = arrived;
    if (now.number + 1 < count) {
      fetch(chunks[static_cast<std::size_t>(now.number) + 1]);
    }
    s.wait(ready);
    work(now);
    way.wait(s.record());
    const MemoryScope as(ctx.device(), MemoryKind::exchange);
    for (const Way& w : back) {
      exchange.to_tokens(w.to, now.of(w.from), plan, now.number, way);
    }
  }
  s.wait(way.record());
}

Tensor Experts::exchanged(const StepContext& ctx, const Tensor& packed, const ExchangePlan& plan, Saved& saved) const {
  Device& device = ctx.device();
  const DType dtype = packed.dtype();
  const std::int64_t rows = std::accumulate(plan.local.begin(), plan.local.end(), std::int64_t{0}), d = packed.dim(1);
  const Weights w = view(group_->weight);
  const Tensor x = exchanged_rows(ctx, dtype, {rows, d}), y = exchanged_rows(ctx, dtype, {rows, d});
  const Tensor h = device.empty(dtype, {rows, hidden_}), a = device.empty(dtype, {rows, width_});
  const Tensor out = exchanged_rows(ctx, dtype, packed.shape());
  travel(ctx, plan, std::array{Way{x, packed}}, std::array{Way{out, y}}, [&](const Chunk& c) {
    with_products(ctx, [&](Stream& s) {
      s.grouped_gemm(c.of(h), c.of(x), c.weights(w.in), c.offset, {.transpose_b = true});
      if (biases_.has_value()) {
        biases_->add_in(ctx, c.of(h), c.offset, c.experts);
      }
      s.activation(c.of(a), c.of(h), activation_);
      s.grouped_gemm(c.of(y), c.of(a), c.weights(w.out), c.offset, {.transpose_b = true});
      if (biases_.has_value()) {
        biases_->add_out(ctx, c.of(y), c.offset, c.experts);
      }
    });
  });
  if (ctx.training) {
    push(saved, x);
    push(saved, h);
  }
  return out;
}

// As Stream::expert_ffn_backward, with the combine weights sent along.
Experts::Gradients Experts::exchanged_backward(const StepContext& ctx, const Tensor& d_out, const Tensor& weight,
                                               const ExchangePlan& plan, Saved& saved) const {
  Device& device = ctx.device();
  const DType dtype = d_out.dtype();
  const Tensor h = pop(saved), x = pop(saved);  // [R', n], [R', d]
  const std::int64_t rows = x.dim(0);
  const bool wanted = wants_gradients(*group_);
  const Weights w = view(group_->weight), g = wanted ? view(group_->grad) : Weights();
  const Tensor dy = exchanged_rows(ctx, dtype, x.shape()), dx = exchanged_rows(ctx, dtype, x.shape());
  const Tensor weight_here = exchanged_rows(ctx, DType::f32, {rows, 1});
  const Tensor dweight = exchanged_rows(ctx, DType::f32, {rows, 1});
  const Tensor da = device.empty(dtype, {rows, width_}), a = device.empty(dtype, {rows, width_});
  const Tensor dh = device.empty(dtype, h.shape());
  const Tensor of_biases = biases_.has_value() ? device.empty(DType::f32, {rows, 1}) : Tensor();
  const Gradients out{exchanged_rows(ctx, dtype, d_out.shape()), exchanged_rows(ctx, DType::f32, weight.shape())};
  travel(ctx, plan, std::array{Way{dy, d_out}, Way{weight_here, weight}},
         std::array{Way{out.n, dx}, Way{out.weight, dweight}}, [&](const Chunk& c) {
           with_products(ctx, [&](Stream& s) {
             s.grouped_gemm(c.of(da), c.of(dy), c.weights(w.out), c.offset, {});
             s.weighted_activation_backward(c.of(dh), c.of(a), c.of(dweight), c.of(da), c.of(h), c.of(weight_here), {},
                                            activation_);
             if (wanted) {
               s.grouped_gemm_tn(c.weights(g.out), c.of(dy), c.of(a), c.offset, beta());
               s.grouped_gemm_tn(c.weights(g.in), c.of(dh), c.of(x), c.offset, beta());
             }
             s.grouped_gemm(c.of(dx), c.of(dh), c.weights(w.in), c.offset, {});
           });
           if (biases_.has_value()) {
             biases_->backward(ctx, c.of(of_biases), c.of(dh), c.of(dy), c.of(weight_here), c.offset, c.experts);
             ctx.stream.add(c.of(dweight), c.of(of_biases));
           }
         });
  return out;
}

}  // namespace orthant
