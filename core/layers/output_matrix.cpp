#include "core/layers/output_matrix.h"

namespace orthant {

OutputMatrix::OutputMatrix(const ParamStore& store, Plan& plan)
    : matrix_(store.ref(plan.settings().model.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight")),
      divisor_(static_cast<float>(plan.settings().model.logit_divisor)),
      softcap_(static_cast<float>(plan.settings().model.logit_softcap)),
      cross_entropy_(plan) {
  if (plan.settings().model.head_bias) {
    bias_ = store.ref("lm_head.bias");
  }
}

Tensor OutputMatrix::products(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const {
  const Tensor w = matrix_.weight();  // [V_r, d]
  Tensor logits = ctx.device().empty(DType::f32, {rows, w.dim(0)});
  ctx.stream.gemm(logits, n.rows(begin, rows), w, {.transpose_b = true});
  if (bias_.has_value()) {
    add_bias(ctx, logits, bias_->weight().view({1, logits.dim(1)}));
  }
  if (divisor_ != 1) {
    ctx.stream.scale(logits, 1 / divisor_);
  }
  return logits;
}

Tensor OutputMatrix::logits(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const {
  const Tensor of = products(ctx, n, begin, rows);
  if (softcap_ == 0) {
    return of;
  }
  Tensor capped = ctx.device().empty(DType::f32, of.shape());
  ctx.stream.scale(of, 1 / softcap_);
  ctx.stream.activation(capped, of, Activation::tanh);
  ctx.stream.scale(capped, softcap_);
  return capped;
}

// The products are computed once more, as the loss has taken the place of the logits.
Tensor OutputMatrix::of_products(const StepContext& ctx, const Tensor& n, std::int64_t begin,
                                 const Tensor& dlogits) const {
  Tensor d = dlogits;
  if (softcap_ != 0) {
    const Tensor of = products(ctx, n, begin, dlogits.dim(0));
    ctx.stream.scale(of, 1 / softcap_);
    d = ctx.device().empty(DType::f32, dlogits.shape());
    ctx.stream.activation_backward(d, dlogits, of, Activation::tanh);
  }
  if (divisor_ != 1) {
    ctx.stream.scale(d, 1 / divisor_);
  }
  if (bias_.has_value() && bias_->wants_grad()) {
    add_bias_backward(ctx, bias_->grad().view({1, d.dim(1)}), d);
  }
  return d;
}

void OutputMatrix::cross_entropy(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& label,
                                 float scale) const {
  cross_entropy_(ctx, loss, logits, label, first_column(), scale);
}

void OutputMatrix::learn(const StepContext& ctx, const Tensor& dn, const Tensor& n, std::int64_t begin,
                         const Tensor& of_logits) const {
  Stream& s = ctx.stream;
  const Tensor dlogits = of_products(ctx, n, begin, of_logits);
  const std::int64_t rows = dlogits.dim(0);
  Tensor narrow = dlogits;
  if (ctx.compute() != DType::f32) {
    narrow = ctx.device().empty(ctx.compute(), dlogits.shape());
    s.cast(narrow, dlogits);
  }
  s.gemm(dn.rows(begin, rows), narrow, matrix_.weight(), {});
  if (matrix_.wants_grad()) {
    const float beta = begin == 0 && matrix_.group().grad_empty ? 0 : 1;
    s.gemm(matrix_.grad(), narrow, n.rows(begin, rows), {.transpose_a = true, .beta = beta});
  }
}

}  // namespace orthant
