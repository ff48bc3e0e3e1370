#include "core/layers/head.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/arch/parameter_table.h"
#include "core/layers/head_chunks.h"

namespace orthant {

HeadLayer::HeadLayer(const ParamStore& store, Plan& plan)
    : norm_(store, "model.norm", plan.settings()), output_(store, plan) {
  if (learns_preferences(plan.settings())) {
    pairs_.emplace(plan);
  }
  groups_ = store.groups_of_layer(head_layer(plan.settings()));
}

Tensor HeadLayer::normed(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  return ctx.plan.cross(head_enter, norm_.forward(ctx, x, saved), ctx.stream);
}

Tensor HeadLayer::logits(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  return logits_of(ctx, normed(ctx, x, saved), 0, x.dim(0));
}

Tensor HeadLayer::forward(const StepContext& ctx, const Tensor& x, Saved& saved) {
  const Tensor h = norm_.forward(ctx, x, saved);
  const Tensor n = ctx.plan.cross(head_enter, h, ctx.stream);
  const Tensor dn = pairs_.has_value() && ctx.sums.teacher != nullptr
                        ? compare(ctx, n)
                        : output_(ctx, n,
                                  {.label = ctx.batch.label,
                                   .sum = ctx.sums.loss,
                                   .each = ctx.sums.token_loss,
                                   .scale = ctx.loss_scale,
                                   .teacher = ctx.training ? ctx.sums.teacher : nullptr});
  if (ctx.training) {
    saved.push(ctx.plan.cross_back(head_enter, dn, ctx.stream));
  }
  return ctx.settings().model.mtp_depth > 0 ? h : Tensor();
}

Tensor HeadLayer::compare(const StepContext& ctx, const Tensor& n) {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const std::int64_t tokens = n.dim(0);
  const std::int64_t chunk = tokens_a_chunk(ctx.plan.settings().model.vocab_size, device.asynchronous());
  const Tensor losses = device.empty(DType::f32, {tokens}), of_reference = device.empty(DType::f32, {tokens});
  Tensor gradients;  // of the last chunk, by the cross entropy of each of its tokens
  const auto take_loss = [&](const Tensor& loss, const Tensor& logits, std::int64_t begin, std::int64_t rows) {
    output_.cross_entropy(ctx, loss.rows(begin, rows), logits, ctx.batch.label.rows(begin, rows), 1);
  };
  ctx.sums.teacher->begin(ctx.micro_batch);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    gradients = {};  // before others take their memory
    take_loss(of_reference, ctx.sums.teacher->logits(begin, rows), begin, rows);
    gradients = output_.logits(ctx, n, begin, rows);
    take_loss(losses, gradients, begin, rows);
  }
  ctx.sums.teacher->end();
  const Tensor weights = (*pairs_)(ctx, losses, of_reference);
  if (!ctx.training) {
    return {};
  }
  Tensor dn = device.empty(n.dtype(), n.shape());
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(std::min(chunk, tokens)));
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor row = device.empty(DType::i32, {static_cast<std::int64_t>(numbers.size()), 1});
  s.upload(row, numbers.data());
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    if (tokens > chunk) {  // they were not kept
      gradients = {};
      gradients = output_.logits(ctx, n, begin, rows);
      take_loss(losses, gradients, begin, rows);
    }
    const Tensor weighted = device.empty(DType::f32, gradients.shape());
    s.combine(weighted, gradients, row.rows(0, rows), weights.rows(begin, rows), false);
    output_.learn(ctx, dn, n, begin, weighted);
  }
  return dn;
}

Tensor HeadLayer::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) {
  const Tensor dh = saved.pop();
  if (dy.defined()) {
    ctx.stream.add(dh, dy);
  }
  Tensor dx = ctx.device().empty(dh.dtype(), dh.shape());
  ctx.stream.fill(dx, 0);
  norm_.backward(ctx, dx, dh, saved);
  return dx;
}

}  // namespace orthant
