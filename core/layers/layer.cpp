#include "core/layers/layer.h"

#include <orthant/settings.h>

namespace orthant {

StepContext StepContext::in(int other) const {
  const auto of = [&](int number) {
    return static_cast<double>(std::max<std::int64_t>(valid[static_cast<std::size_t>(number)], 1));
  };
  const float share = valid.empty() ? 1 : static_cast<float>(of(space) / of(other));
  return {.plan = plan,
          .stream = stream,
          .batch = other == space ? batch : batch.spaces.at(static_cast<std::size_t>(other) - 1),
          .sums = sums,
          .step = step,
          .lr = lr,
          .capacity_share = capacity_share,
          .micro_batch = micro_batch,
          .space = other,
          .recompute = recompute,
          .training = training,
          .loss_scale = loss_scale,
          .aux_scale = aux_scale * share,
          .z_scale = z_scale * share,
          .valid = valid};
}

DType StepContext::compute() const {
  return compute_type(settings());
}

Tensor linear(const StepContext& ctx, const Tensor& x, const Tensor& w) {
  Tensor y = ctx.device().empty(x.dtype(), {x.dim(0), w.dim(0)});
  ctx.stream.gemm(y, x, w, {.transpose_b = true});
  return y;
}

Tensor linear_backward(const StepContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dw) {
  Tensor dx = ctx.device().empty(dy.dtype(), {dy.dim(0), w.dim(1)});
  ctx.stream.gemm(dx, dy, w, {});
  if (dw.defined()) {
    ctx.stream.gemm(dw, dy, x, {.transpose_a = true, .beta = 1});
  }
  return dx;
}

namespace {

Tensor column_of_ones(const StepContext& ctx, std::int64_t rows, DType dtype) {
  Tensor ones = ctx.device().empty(dtype, {rows, 1});
  ctx.stream.fill(ones, 1);
  return ones;
}

}  // namespace

void add_bias(const StepContext& ctx, const Tensor& y, const Tensor& b) {
  ctx.stream.gemm(y, column_of_ones(ctx, y.dim(0), b.dtype()), b, {.beta = 1});
}

void add_bias_backward(const StepContext& ctx, const Tensor& db, const Tensor& dy) {
  ctx.stream.gemm(db, column_of_ones(ctx, dy.dim(0), dy.dtype()), dy, {.transpose_a = true, .beta = 1});
}

Tensor branch_dropout(const StepContext& ctx, Tensor y, std::uint32_t site) {
  const double rate = ctx.settings().model.dropout;
  if (ctx.training && rate > 0) {
    const RandomKey key{ctx.settings().run.seed, Purpose::dropout, site, ctx.step};
    ctx.stream.dropout(y, y, ctx.rows_in(Region::norm, ctx.batch.index), key, static_cast<float>(rate),
                       {0, 0, y.dim(1)});
  }
  return y;
}

}  // namespace orthant
