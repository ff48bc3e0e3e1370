// A product of rows with its bias, y = x W' + b, as convolutions of 1 x 1 are; every rank computes its rows whole.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <orthant/part.h>

namespace orthant::images {

inline Tensor as_type(const Tensor& t, DType type, Stream& s) {
  if (t.dtype() == type) {
    return t;
  }
  const Tensor other = s.device().empty(type, t.shape());
  s.cast(other, t);
  return other;
}

class DenseRows {
 public:
  DenseRows(const Parameters& parameters, const std::string& name)
      : weight_(parameters.ref(name + ".weight")), bias_(parameters.ref(name + ".bias")) {}

  static void specs(std::vector<ParamSpec>& to, const std::string& name, std::int64_t rows, std::int64_t columns) {
    to.push_back({.name = name + ".weight",
                  .global = {rows, columns},
                  .region = Region::norm,
                  .std = 1 / std::sqrt(static_cast<float>(columns))});
    to.push_back(
        {.name = name + ".bias", .global = {rows}, .region = Region::norm, .init = Init::zeros, .decay = false});
  }

  Tensor forward(const StepContext& ctx, const Tensor& x) const {
    const Tensor y = linear(ctx, x, weight_.weight());
    add_bias(ctx, y, row(bias_.weight()));
    return y;
  }
  // dx; adds to the gradients of weight and bias.
  Tensor backward(const StepContext& ctx, const Tensor& dy, const Tensor& x) const {
    learn(ctx, dy);
    return linear_backward(ctx, dy, x, weight_.weight(), weight_.wanted_grad());
  }
  // The same where nobody wants dx.
  void backward_of_input(const StepContext& ctx, const Tensor& dy, const Tensor& x) const {
    learn(ctx, dy);
    if (weight_.wants_grad()) {
      ctx.stream.gemm(weight_.grad(), dy, x, {.transpose_a = true, .beta = 1});
    }
  }

 private:
  static Tensor row(const Tensor& bias) { return bias.view({1, bias.elements()}); }
  void learn(const StepContext& ctx, const Tensor& dy) const {
    if (bias_.wants_grad()) {
      add_bias_backward(ctx, row(bias_.grad()), dy);
    }
  }

  ParamRef weight_, bias_;
};

}  // namespace orthant::images
