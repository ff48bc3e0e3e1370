#include "activation.h"

#include <cmath>
#include <numbers>

namespace orthant::encoder {
namespace {

struct Gelu {
  explicit Gelu(double x) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);  // Phi(x)
    value = x * below;
    slope = below + x * std::exp(-0.5 * x * x) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  }
  double value, slope;
};

Tensor in_f32(const Tensor& t, Stream& s) {
  if (t.dtype() == DType::f32) {
    return t;
  }
  const Tensor wide = s.device().empty(DType::f32, t.shape());
  s.cast(wide, t);
  return wide;
}

Tensor in_type(const Tensor& t, DType type, Stream& s) {
  if (t.dtype() == type) {
    return t;
  }
  const Tensor other = s.device().empty(type, t.shape());
  s.cast(other, t);
  return other;
}

}  // namespace

Tensor FfnActivation::forward(const StepContext& ctx, const Tensor& h) const {
  Stream& s = ctx.stream;
  const bool gated = is_gated(kind_);
  const Shape shape{h.dim(0), h.dim(1) / (gated ? 2 : 1)};
  if (!exact_) {
    Tensor a = ctx.device().empty(h.dtype(), shape);
    s.activation(a, h, kind_);
    return a;
  }
  const Tensor a = ctx.device().empty(DType::f32, shape);
  s.apply({.name = "encoder/gelu",
           .inputs = {in_f32(h, s)},
           .outputs = {a},
           .host = [gated, f = static_cast<std::size_t>(shape[1])](const HostArguments& of) {
             const auto x = of.input<float>(0);
             const auto to = of.output<float>(0);
             for (std::size_t i = 0; i < to.size(); ++i) {
               const std::size_t gate = gated ? i / f * 2 * f + i % f : i;
               const double up = gated ? static_cast<double>(x[gate + f]) : 1;
               to[i] = static_cast<float>(Gelu(static_cast<double>(x[gate])).value * up);
             }
           }});
  return in_type(a, h.dtype(), s);
}

Tensor FfnActivation::backward(const StepContext& ctx, const Tensor& da, const Tensor& h) const {
  Stream& s = ctx.stream;
  if (!exact_) {
    Tensor dh = ctx.device().empty(h.dtype(), h.shape());
    s.activation_backward(dh, da, h, kind_);
    return dh;
  }
  const Tensor dh = ctx.device().empty(DType::f32, h.shape());
  s.apply({.name = "encoder/gelu_backward",
           .inputs = {in_f32(da, s), in_f32(h, s)},
           .outputs = {dh},
           .host = [gated = is_gated(kind_), f = static_cast<std::size_t>(da.dim(1))](const HostArguments& of) {
             const auto d = of.input<float>(0), x = of.input<float>(1);
             const auto to = of.output<float>(0);
             for (std::size_t i = 0; i < d.size(); ++i) {
               const std::size_t gate = gated ? i / f * 2 * f + i % f : i;
               const Gelu gelu(static_cast<double>(x[gate]));
               const double by = static_cast<double>(d[i]);
               to[gate] = static_cast<float>(by * gelu.slope * (gated ? static_cast<double>(x[gate + f]) : 1));
               if (gated) {
                 to[gate + f] = static_cast<float>(by * gelu.value);
               }
             }
           }});
  return in_type(dh, h.dtype(), s);
}

}  // namespace orthant::encoder
