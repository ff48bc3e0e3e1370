#include "experts/shared_experts.h"

namespace orthant {
namespace {

// T tokens that all choose the one expert there is, with a sigmoid for its weight: the router's operations then weigh
// rows, and row t is token t's.
struct OneChoice {
  GateConfig config;
  Tensor logits, valid;        // f32 [T, 1], u8 [T]
  Tensor expert, lse, chosen;  // i32 [T, 1], f32 [T], i32 [1, 1]
  Dispatch dispatch;
};

// n [T, d], w [1, d].
OneChoice choice_by_sigmoid(const StepContext& ctx, const Tensor& n, const Tensor& w) {
  Stream& s = ctx.stream;
  const std::int64_t tokens = n.dim(0);
  const auto empty = [&](DType dtype, Shape shape) { return ctx.device().empty(dtype, shape); };
  OneChoice one{.config = {.score = ScoreKind::sigmoid,
                           .experts = 1,
                           .top_k = 1,
                           .normalize_weights = false,
                           .group_tokens = tokens},
                .logits = empty(DType::f32, {tokens, 1}),
                .valid = empty(DType::u8, {tokens}),
                .expert = empty(DType::i32, {tokens, 1}),
                .lse = empty(DType::f32, {tokens}),
                .chosen = empty(DType::i32, {1, 1}),
                .dispatch = {.row = empty(DType::i32, {tokens, 1}),
                             .source = empty(DType::i32, {tokens, 1}),
                             .offset = empty(DType::i32, {2}),
                             .weight = empty(DType::f32, {tokens, 1})}};
  s.gemm(one.logits, n, w, {.transpose_b = true});
  s.fill(one.valid, 1);
  s.fill(one.expert, 0);
  s.gate_choices(one.dispatch.weight, one.lse, one.chosen, empty(DType::f64, {1, 1}), one.expert, one.logits, one.valid,
                 one.config);
  const Tensor kept = empty(DType::i32, {1}), dropped = empty(DType::i32, {1});
  s.dispatch_plan(one.dispatch.row, one.dispatch.source, kept, dropped, one.dispatch.offset, one.expert,
                  one.dispatch.weight, one.valid, one.config);
  return one;
}

}  // namespace

SharedExperts::SharedExperts(const ParamStore& store, const std::string& stem, const Settings& settings)
    : ffn_(store, stem + ".shared_experts", settings) {
  if (settings.moe.shared_gate) {
    gate_ = store.ref(stem + ".shared_expert_gate.weight");
  }
}

void SharedExperts::add(const StepContext& ctx, const Tensor& y, const Tensor& n, Saved& saved) const {
  const Tensor made = ffn_.forward(ctx, n, saved);
  if (!gate_.has_value()) {
    ctx.stream.add(y, made);
    return;
  }
  const OneChoice one = choice_by_sigmoid(ctx, n, gate_->weight());
  ctx.stream.combine(y, made, one.dispatch.row, one.dispatch.weight, true);
  saved.push(n);
  saved.push(made);
}

Tensor SharedExperts::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  if (!gate_.has_value()) {
    return ffn_.backward(ctx, dy, saved);
  }
  Stream& s = ctx.stream;
  const Tensor made = saved.pop(), n = saved.pop();
  const OneChoice one = choice_by_sigmoid(ctx, n, gate_->weight());
  const Dispatch& to = one.dispatch;
  const Tensor dmade = ctx.device().empty(made.dtype(), made.shape());
  const Tensor dweight = ctx.device().empty(DType::f32, to.weight.shape());
  s.combine_backward(dmade, dweight, dy, made, to.row, to.source, to.weight);
  const Tensor dlogits = ctx.device().empty(DType::f32, one.logits.shape());
  s.gate_backward(dlogits, dweight, one.expert, one.lse, one.chosen, one.logits, one.valid, 0, 0, one.config);
  Tensor d = dlogits;
  if (ctx.compute() != DType::f32) {
    d = ctx.device().empty(ctx.compute(), dlogits.shape());
    s.cast(d, dlogits);
  }
  const Tensor dn = ffn_.backward(ctx, dmade, saved);
  s.add(dn, linear_backward(ctx, d, n, gate_->weight(), gate_->grad()));
  return dn;
}

}  // namespace orthant
