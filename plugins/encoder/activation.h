// What stands between the two products of an FFN, and in the head's transform: Stream's activations, and GELU and GEGLU
// with the exact GELU, x Phi(x) with Phi the normal distribution (Hendrycks and Gimpel, "Gaussian Error Linear Units",
// 2016), as published encoders have it. Stream has the tanh form. The exact one runs on the host.
#pragma once

#include <orthant/part.h>

namespace orthant::encoder {

class FfnActivation {
 public:
  FfnActivation(Activation kind, bool exact) : kind_(kind), exact_(exact) {}
  // a [T, f] of h [T, n]: n = f, or 2 f where the kind is gated, (gate | up) in columns.
  Tensor forward(const StepContext& ctx, const Tensor& h) const;
  Tensor backward(const StepContext& ctx, const Tensor& da, const Tensor& h) const;  // dh

 private:
  Activation kind_;
  bool exact_;
};

}  // namespace orthant::encoder
