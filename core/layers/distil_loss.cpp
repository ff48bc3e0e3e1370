#include "core/layers/distil_loss.h"

#include <orthant/settings.h>

#include "core/layers/layer.h"

namespace orthant {
namespace {

Tensor divided(const StepContext& ctx, const Tensor& logits, double by) {
  Tensor copy = ctx.device().empty(DType::f32, logits.shape());
  ctx.stream.copy(copy, logits);
  if (by != 1) {
    ctx.stream.scale(copy, static_cast<float>(1 / by));
  }
  return copy;
}

}  // namespace

void DistilLoss::begin(const StepContext& ctx) {
  over_columns_ = ctx.device().empty(DType::f64, {1});
  ctx.stream.fill(over_columns_, 0);
}

void DistilLoss::end(const StepContext& ctx) {
  cross_entropy_.sum_over_columns(ctx, over_columns_);
  ctx.stream.sum(ctx.sums.distil, over_columns_);
  over_columns_ = {};
}

void DistilLoss::operator()(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& teacher,
                            const Tensor& label, std::int64_t first) {
  Stream& s = ctx.stream;
  const DistilSettings& distil = ctx.settings().distil;
  const double t = distil.temperature;
  const float scale = static_cast<float>(distil.weight * t * static_cast<double>(ctx.loss_scale));
  const Tensor student = divided(ctx, logits, t);  // l / t [T, V_r]
  if (t != 1) {
    s.scale(teacher, static_cast<float>(1 / t));
  }
  const Tensor apart = divided(ctx, student, -1);  // (m - l) / t
  s.add(apart, teacher);
  const Tensor of_student = ctx.device().empty(DType::f32, loss.shape());  // -log p(label) at the temperature
  const Tensor of_teacher = ctx.device().empty(DType::f32, loss.shape());
  cross_entropy_(ctx, of_student, student, label, first, scale);
  cross_entropy_(ctx, of_teacher, teacher, label, first, 1);  // q - y
  s.multiply(apart, teacher);
  s.sum(over_columns_, apart);
  s.sum(ctx.sums.distil, of_student);
  s.scale(of_teacher, -1);
  s.sum(ctx.sums.distil, of_teacher);
  cross_entropy_(ctx, loss, logits, label, first, static_cast<float>((1 - distil.weight) * ctx.loss_scale));
  s.scale(teacher, -scale);
  s.add(logits, student);
  s.add(logits, teacher);
}

}  // namespace orthant
