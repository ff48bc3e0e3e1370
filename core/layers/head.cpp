#include "core/layers/head.h"

#include <algorithm>

#include "core/layers/distil_loss.h"
#include "core/layers/head_chunks.h"

namespace orthant {
namespace {

constexpr Site head_enter{Region::head, Side::enter};

}  // namespace

HeadLayer::HeadLayer(const ParamStore& store, Plan& plan)
    : norm_(store, "model.norm", plan.settings()),
      matrix_(store.ref(plan.settings().model.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight")),
      cross_entropy_(plan) {
  groups_ = store.groups_of_layer(static_cast<int>(plan.settings().model.layers) + 1);
}

Tensor HeadLayer::normed(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  return ctx.plan.cross(head_enter, norm_.forward(ctx, x, saved), ctx.stream);
}

Tensor HeadLayer::logits_of(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const {
  const Tensor w = matrix_.weight();  // [V_r, d]
  Tensor logits = ctx.device().empty(DType::f32, {rows, w.dim(0)});
  ctx.stream.gemm(logits, n.rows(begin, rows), w, {.transpose_b = true});
  return logits;
}

Tensor HeadLayer::logits(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  return logits_of(ctx, normed(ctx, x, saved), 0, x.dim(0));
}

Tensor HeadLayer::forward(const StepContext& ctx, const Tensor& x, Saved& saved) {
  Device& device = ctx.device();
  Stream& s = ctx.stream;
  const Tensor w = matrix_.weight();  // [V_r, d]
  const Tensor n = normed(ctx, x, saved);
  const std::int64_t tokens = n.dim(0), first = matrix_.param().offset[0];
  const std::int64_t chunk = tokens_a_chunk(ctx.plan.settings().model.vocab_size, device.asynchronous());
  const Tensor losses = ctx.sums.token_loss.defined() ? ctx.sums.token_loss : device.empty(DType::f32, {tokens});
  Tensor dn = ctx.training ? device.empty(n.dtype(), n.shape()) : Tensor();
  TeacherLogits* const teacher = ctx.training ? ctx.sums.teacher : nullptr;
  DistilLoss distil(cross_entropy_);
  if (teacher != nullptr) {
    teacher->begin(ctx.micro_batch);
    distil.begin(ctx);
  }
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    const Tensor logits = logits_of(ctx, n, begin, rows);
    const Tensor loss = losses.rows(begin, rows), label = ctx.batch.label.rows(begin, rows);
    if (teacher != nullptr) {
      distil(ctx, loss, logits, teacher->logits(begin, rows), label, first);
    } else {
      cross_entropy_(ctx, loss, logits, label, first, ctx.loss_scale);
    }
    if (ctx.training) {
      Tensor dlogits = logits;
      if (ctx.compute() != DType::f32) {
        dlogits = device.empty(ctx.compute(), logits.shape());
        s.cast(dlogits, logits);
      }
      s.gemm(dn.rows(begin, rows), dlogits, w, {});
      if (matrix_.wants_grad()) {
        const float beta = begin == 0 && matrix_.group().grad_empty ? 0 : 1;
        s.gemm(matrix_.grad(), dlogits, n.rows(begin, rows), {.transpose_a = true, .beta = beta});
      }
    }
  }
  s.sum(ctx.sums.loss, losses);
  if (teacher != nullptr) {
    distil.end(ctx);
    teacher->end();
  }
  if (ctx.training) {
    saved.push(dn);
  }
  return {};
}

Tensor HeadLayer::backward(const StepContext& ctx, const Tensor&, Saved& saved) {
  const Tensor dn = ctx.plan.cross_back(head_enter, saved.pop(), ctx.stream);
  Tensor dx = ctx.device().empty(dn.dtype(), dn.shape());
  ctx.stream.fill(dx, 0);
  norm_.backward(ctx, dx, dn, saved);
  return dx;
}

}  // namespace orthant
