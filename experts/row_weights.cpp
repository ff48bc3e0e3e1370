#include "experts/row_weights.h"

namespace orthant {
namespace {

Tensor ones(const StepContext& ctx, Shape shape) {
  const Tensor made = ctx.device().empty(DType::f32, shape);
  ctx.stream.fill(made, 1);
  return made;
}

}  // namespace

Tensor spread_weights(const StepContext& ctx, const Tensor& weight, std::int64_t d) {
  const Tensor spread = ctx.device().empty(DType::f32, {weight.dim(0), d});
  ctx.stream.gemm(spread, weight, ones(ctx, {weight.dim(1), d}), {});
  return spread;
}

Tensor product(const StepContext& ctx, DType dtype, const Tensor& x, const Tensor& by) {
  const Tensor made = ctx.device().empty(dtype, x.shape());
  ctx.stream.cast(made, x);
  ctx.stream.multiply(made, by);
  return made;
}

Tensor row_products(const StepContext& ctx, const Tensor& a, const Tensor& b, std::int64_t columns) {
  const Tensor made = ctx.device().empty(DType::f32, {a.dim(0), columns});
  ctx.stream.gemm(made, product(ctx, DType::f32, a, b), ones(ctx, {columns, a.dim(1)}), {.transpose_b = true});
  return made;
}

}  // namespace orthant
