#include "router/router.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "router/routing_tap.h"

namespace orthant {
namespace {

constexpr Site enter{Region::router, Side::enter}, leave{Region::router, Side::leave};

// Rows of StepSums::router_gradients.
constexpr int of_loss = 0, of_balance = 1, of_z = 2;

// Waits for the device.
std::int64_t total(const Tensor& counts, Stream& s) {
  std::vector<std::int32_t> host(counts.elements());
  s.download(host.data(), counts);
  return std::accumulate(host.begin(), host.end(), std::int64_t{0});
}

}  // namespace

void Routing::save(Saved& to) const {
  for (const Tensor* t : {&logits, &expert, &lse, &chosen, &dispatch.row, &dispatch.source, &dispatch.offset,
                          &dispatch.weight, &copies, &copy_weight}) {
    push(to, *t);
  }
  to.plans.push_back(plan);
}

Routing Routing::take(Saved& from) {
  Routing r;
  for (Tensor* t : {&r.copy_weight, &r.copies, &r.dispatch.weight, &r.dispatch.offset, &r.dispatch.source,
                    &r.dispatch.row, &r.chosen, &r.lse, &r.expert, &r.logits}) {
    *t = pop(from);
  }
  r.plan = std::move(from.plans.back());
  from.plans.pop_back();
  return r;
}

Router::Router(const ParamStore& store, Plan& plan, const Link& link)
    : gate_(gate_of(plan.settings())),
      weight_(store.ref(link.router + ".gate.weight")),
      state_(store.gate_state(link.number)),
      block_(link.block),
      routed_(link.routed),
      group_tokens_(link.space == 0 ? 0
                                    : plan.settings().moe.group_tokens.or_else(
                                          plan.spaces()[static_cast<std::size_t>(link.space)].positions)),
      layout_(plan, link.space) {
  if (plan.settings().moe.router_bias) {
    bias_ = store.ref(link.router + ".gate.bias");
  }
}

GateConfig Router::config(const StepContext& ctx) const {
  GateConfig config = gate_.config(ctx.settings());
  config.capacity_factor *= ctx.capacity_share;
  config.group_tokens = group_tokens_ > 0 ? group_tokens_ : config.group_tokens;
  return config;
}

GateConfig Router::balance_config(const StepContext& ctx, std::int64_t tokens) const {
  GateConfig config = this->config(ctx);
  if (ctx.settings().moe.balance_over == BalanceOver::batch) {
    config.group_tokens = tokens;
  }
  return config;
}

GateInput Router::gate_input(const StepContext& ctx, const Tensor& logits) const {
  return {.logits = logits,
          .valid = ctx.batch.whole_valid,
          .index = ctx.batch.whole_index,
          .token = ctx.batch.whole_token,
          .state = state_,
          .key = key(ctx, Purpose::second_expert),
          .moe = &ctx.settings().moe};
}

RandomKey Router::key(const StepContext& ctx, Purpose purpose) const {
  return {ctx.settings().run.seed, purpose, static_cast<std::uint32_t>(block_ + 1), ctx.step};
}

Tensor Router::input(const StepContext& ctx, const Tensor& n) const {
  const Tensor input = ctx.cross(enter, n);
  const double jitter = ctx.settings().moe.jitter;
  if (!ctx.training || jitter <= 0) {
    return input;
  }
  Tensor noisy = ctx.device().empty(n.dtype(), input.shape());
  ctx.stream.jitter(noisy, input, layout_.take(Region::router, ctx.batch.whole_index, ctx.stream),
                    key(ctx, Purpose::jitter), static_cast<float>(jitter));
  return noisy;
}

Tensor Router::logits(const StepContext& ctx, const Tensor& input) const {
  const Tensor own = ctx.device().empty(DType::f32, {input.dim(0), ctx.settings().moe.columns()});
  ctx.stream.gemm(own, input, weight_.weight(), {.transpose_b = true});
  if (bias_.has_value()) {
    add_bias(ctx, own, bias_->weight().view({1, own.dim(1)}));
  }
  return layout_.gather(own, ctx.stream);
}

Routing Router::route(const StepContext& ctx, const Tensor& input) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  Routing r;
  r.logits = logits(ctx, input);
  const std::int64_t tokens = r.logits.dim(0);
  const GateConfig config = balance_config(ctx, tokens);
  const std::int64_t experts = config.experts, k = config.top_k, groups = tokens / config.group_tokens;
  r.expert = device.empty(DType::i32, {tokens, k});
  r.lse = device.empty(DType::f32, {tokens});
  r.chosen = device.empty(DType::i32, {groups, experts});
  const Tensor weight = device.empty(DType::f32, {tokens, k}), share = device.empty(DType::f64, {groups, experts});
  const GateChoice choice{.expert = r.expert, .weight = weight, .lse = r.lse, .chosen = r.chosen, .share = share};
  const GateInput from = gate_input(ctx, r.logits);
  gate_.choose(choice, from, config, s);
  if (ctx.sums.tap != nullptr) {
    ctx.sums.tap->decided(ctx, routed_, from, choice);
  }
  if (ctx.training) {
    if (ctx.sums.routing.defined()) {
      s.routing_sums(ctx.sums.routing.rows(routed_, 1).view({3}), r.expert, r.lse, r.logits, ctx.batch.whole_valid,
                     config);
    }
    layout_.sum_over_batch(r.chosen, s);
    gate_.losses(ctx.sums.balance, ctx.sums.z, choice, from, config, s);
  }
  seat(ctx, r, weight);
  return r;
}

// Weights in forward, once they have decided who is seated; their gradients in backward. In place.
void Router::scale(const StepContext& ctx, const Tensor& weights) const {
  if (const double by = ctx.settings().moe.weight_scale; by != 1) {
    ctx.stream.scale(weights, static_cast<float>(by));
  }
}

Tensor Router::computing_choices(const StepContext& ctx, Routing& r, const Tensor& whole_weight,
                                 const Tensor& counts) const {
  const GateConfig gate = config(ctx);
  if (gate.zero_experts == 0) {
    return r.expert;
  }
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const Tensor real = device.empty(DType::i32, r.expert.shape()), other = device.empty(DType::f32, real.shape());
  const auto of_zero = [&](int row) {
    return counts.slice(row * gate.experts + gate.computing(), {gate.zero_experts});
  };
  s.part_choices(real, other, of_zero(0), r.expert, gate);
  s.fill(of_zero(1), 0);  // no seats, and so none that are lost
  if (ctx.settings().moe.zero_expert == ZeroExpert::copy) {
    r.copies = layout_.take(Region::norm, other, s);
    r.copy_weight = device.empty(DType::f32, r.copies.shape());
    s.copy(r.copy_weight, layout_.take(Region::norm, whole_weight, s));
    s.multiply(r.copy_weight, r.copies);
    scale(ctx, r.copy_weight);
  }
  return real;
}

// Capacity, the packed rows of this rank's tokens, and who gets them.
void Router::seat(const StepContext& ctx, Routing& r, const Tensor& whole_weight) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  TokenExchange* const exchange = ctx.plan.exchange();
  GateConfig gate = config(ctx);
  const std::int64_t apart = rows_of_block(ctx.plan, gate, r.expert.dim(0));
  const std::int64_t experts = gate.computing();
  const Shape both{2, gate.experts};
  // i32 [2, columns]: choices kept, and dropped.
  Tensor counts = ctx.training ? ctx.sums.counts.rows(routed_, 1).view(both) : device.empty(DType::i32, both);
  auto dispatch = [&](const Tensor& expert, const Tensor& weight, const Tensor& valid) {
    const std::int64_t room = gate.rows_per_expert > 0 ? experts * gate.rows_per_expert : expert.elements();
    r.dispatch.row = device.empty(DType::i32, expert.shape());
    r.dispatch.source = device.empty(DType::i32, {room, 1});
    r.dispatch.offset = device.empty(DType::i32, {experts + 1});
    s.dispatch_plan(r.dispatch.row, r.dispatch.source, counts.slice(0, {experts}),
                    counts.slice(gate.experts, {experts}), r.dispatch.offset, expert, weight, valid, gate);
  };
  gate.rows_per_expert = layout_.alone() ? apart : 0;
  const Tensor chosen = computing_choices(ctx, r, whole_weight, counts);
  dispatch(chosen, whole_weight, ctx.batch.whole_valid);
  const Tensor weight = layout_.take(Region::experts, whole_weight, s);  // [tokens_X, K]
  if (!layout_.alone()) {
    // Seats are decided: of the choices that have one, those of this rank's tokens.
    const Tensor expert = layout_.take(Region::experts, chosen, s);
    s.keep_seated(expert, layout_.take(Region::experts, r.dispatch.row, s));
    gate.capacity_factor = 0;
    gate.group_tokens = expert.dim(0);
    gate.rows_per_expert = apart;
    counts = device.empty(DType::i32, both);
    dispatch(expert, weight, layout_.take(Region::experts, ctx.batch.whole_valid, s));
  }
  scale(ctx, weight);
  r.dispatch.weight = ctx.cross(leave, weight);
  const Tensor kept = counts.slice(0, {experts});
  if (apart > 0) {
    r.plan = exchange->plan_equal(experts, apart);
    return;
  }
  if (!device.asynchronous()) {
    r.dispatch.source = r.dispatch.source.rows(0, total(kept, s));
  }
  if (exchange != nullptr) {
    r.unplanned = kept;
  }
}

Tensor Router::own_gradient(const StepContext& ctx, const Tensor& whole) const {
  const Tensor own = layout_.take(Region::router, whole, ctx.stream);
  if (ctx.compute() == DType::f32) {
    return own;
  }
  Tensor narrow = ctx.device().empty(ctx.compute(), own.shape());
  ctx.stream.cast(narrow, own);
  return narrow;
}

// The gradient of the logits is a sum of three, each linear in its scale.
void Router::split_gradient(const StepContext& ctx, const Tensor& dweight, const GateChoice& made, const Routing& r,
                            const Tensor& input, int rest) const {
  Stream& s = ctx.stream;
  const Tensor& to = ctx.sums.router_gradients.at(static_cast<std::size_t>(routed_));
  const auto of_cause = [&](int cause) { return to.rows(cause, 1).view({to.dim(1), to.dim(2)}); };
  const GateConfig config = balance_config(ctx, r.logits.dim(0));
  const Tensor whole = ctx.device().empty(DType::f32, r.logits.shape()),
               none = ctx.device().empty(DType::f32, dweight.shape()),
               share = ctx.device().empty(DType::f32, of_cause(0).shape());
  s.fill(none, 0);
  const auto add = [&](int cause, const Tensor& by_weight, float aux_scale, float z_scale) {
    if (cause == rest) {
      return;
    }
    gate_.backward(whole, by_weight, made, gate_input(ctx, r.logits), aux_scale, z_scale, config, s);
    s.gemm(share, own_gradient(ctx, whole), input, {.transpose_a = true});
    s.add(of_cause(cause), share);
    if (rest >= 0) {
      s.scale(share, -1);
      s.add(of_cause(rest), share);
    }
  };
  add(of_loss, dweight, 0, 0);
  if (ctx.aux_scale != 0) {
    add(of_balance, none, ctx.aux_scale, 0);
  }
  if (ctx.z_scale != 0) {
    add(of_z, none, 0, ctx.z_scale);
  }
}

void Router::backward(const StepContext& ctx, const Tensor& dn, const Tensor& dweight_here, const Tensor& dcopy_weight,
                      const Routing& r, const Tensor& input) const {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const Tensor dweight = ctx.cross_back(leave, dweight_here);
  scale(ctx, dweight);
  // A row of dlogits depends on dweight's row alone, and this rank needs those of the tokens that it routes.
  const Tensor of_all = layout_.put(Region::experts, dweight, r.logits.dim(0), s);
  if (dcopy_weight.defined()) {
    scale(ctx, dcopy_weight);
    s.add(of_all, layout_.put(Region::norm, dcopy_weight, r.logits.dim(0), s));
  }
  Tensor whole = device.empty(DType::f32, r.logits.shape());  // [T, E]
  const GateChoice made{.expert = r.expert, .weight = {}, .lse = r.lse, .chosen = r.chosen, .share = {}};
  gate_.backward(whole, of_all, made, gate_input(ctx, r.logits), ctx.aux_scale, ctx.z_scale,
                 balance_config(ctx, r.logits.dim(0)), s);
  const Tensor dlogits = own_gradient(ctx, whole);
  if (bias_.has_value()) {
    add_bias_backward(ctx, bias_->grad().view({1, dlogits.dim(1)}), dlogits);
  }
  const Tensor dw = weight_.wanted_grad();
  const bool measures = !ctx.sums.router_gradients.empty();
  // What the step computes anyway is measured as the difference that it makes, and spares one cause its product: not
  // the loss's, whose share may be 0. In bf16 the logits' gradient is rounded, by more than a share may be.
  const bool by_difference = measures && dw.defined() && ctx.compute() == DType::f32;
  const int rest = !by_difference ? -1 : ctx.aux_scale != 0 ? of_balance : ctx.z_scale != 0 ? of_z : of_loss;
  const auto add_whole = [&](float by) {
    const Tensor sum = device.empty(DType::f32, dw.shape());
    s.copy(sum, dw);
    s.scale(sum, by);
    s.add(ctx.sums.router_gradients.at(static_cast<std::size_t>(routed_)).rows(rest, 1).view(dw.shape()), sum);
  };
  if (rest >= 0) {
    add_whole(-1);
  }
  const Tensor d = linear_backward(ctx, dlogits, input, weight_.weight(), dw);
  if (rest >= 0) {
    add_whole(1);
  }
  if (measures) {
    split_gradient(ctx, of_all, made, r, input, rest);
  }
  const double jitter = ctx.settings().moe.jitter;
  if (jitter > 0) {
    s.jitter(d, d, layout_.take(Region::router, ctx.batch.whole_index, s), key(ctx, Purpose::jitter),
             static_cast<float>(jitter));
  }
  s.add(dn, ctx.cross_back(enter, d));
}

}  // namespace orthant
