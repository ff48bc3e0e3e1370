#include "experts/shared_experts.h"

#include <numeric>

#include "experts/row_weights.h"

namespace orthant {
namespace {

// What T tokens weigh the shared experts by. sigmoid(logit) is the weight of a choice among one expert, so that the
// gate's operations make it, and its gradient.
struct Weighing {
  GateConfig config;
  Tensor logits, valid;        // f32 [T, 1], u8 [T]
  Tensor expert, lse, chosen;  // i32 [T, 1], f32 [T], i32 [groups, 1]
  Tensor weight, spread;       // f32 [T, 1], f32 [T, d]: the weight in every column
};

// n [T, d], w [1, d].
Weighing weighing(const StepContext& ctx, const Tensor& n, const Tensor& w) {
  Stream& s = ctx.stream;
  const std::int64_t tokens = n.dim(0);
  const std::int64_t group = std::gcd(tokens, std::int64_t{64});  // devices work on groups at the same time
  const auto empty = [&](DType dtype, Shape shape) { return ctx.device().empty(dtype, shape); };
  Weighing made{.config = {.score = ScoreKind::sigmoid,
                           .experts = 1,
                           .top_k = 1,
                           .normalize_weights = false,
                           .group_tokens = group},
                .logits = empty(DType::f32, {tokens, 1}),
                .valid = empty(DType::u8, {tokens}),
                .expert = empty(DType::i32, {tokens, 1}),
                .lse = empty(DType::f32, {tokens}),
                .chosen = empty(DType::i32, {tokens / group, 1}),
                .weight = empty(DType::f32, {tokens, 1}),
                .spread = {}};
  s.gemm(made.logits, n, w, {.transpose_b = true});
  s.fill(made.valid, 1);
  s.fill(made.expert, 0);
  s.gate_choices(made.weight, made.lse, made.chosen, empty(DType::f64, {tokens / group, 1}), made.expert, made.logits,
                 made.valid, made.config);
  made.spread = spread_weights(ctx, made.weight, n.dim(1));
  return made;
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
  ctx.stream.add(y, product(ctx, made.dtype(), made, weighing(ctx, n, gate_->weight()).spread));
  saved.push(n);
  saved.push(made);
}

Tensor SharedExperts::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  if (!gate_.has_value()) {
    return ffn_.backward(ctx, dy, saved);
  }
  Stream& s = ctx.stream;
  const Tensor made = saved.pop(), n = saved.pop();
  const Weighing by = weighing(ctx, n, gate_->weight());
  const Tensor dweight = row_products(ctx, dy, made, 1);
  Tensor dlogits = ctx.device().empty(DType::f32, by.logits.shape());
  s.gate_backward(dlogits, dweight, by.expert, by.lse, by.chosen, by.logits, by.valid, 0, 0, by.config);
  if (ctx.compute() != DType::f32) {
    const Tensor narrow = ctx.device().empty(ctx.compute(), dlogits.shape());
    s.cast(narrow, dlogits);
    dlogits = narrow;
  }
  const Tensor dn = ffn_.backward(ctx, product(ctx, dy.dtype(), dy, by.spread), saved);
  s.add(dn, linear_backward(ctx, dlogits, n, gate_->weight(), gate_->wanted_grad()));
  return dn;
}

}  // namespace orthant
