// The arithmetic of the optimizers' updates of one element, for the host and for kernels.
//
// Which product and sum are rounded as one is written out (multiply_add), not left to the compiler: it chose one way in
// the vectorised part of a loop and another in its rest, so that an element's bits depended on where its slice began.
// No sum here has a product as a bare operand that could be contracted with it.
#pragma once

#include <orthant/ops.h>
#include <orthant/random.h>

#include <cmath>

namespace orthant {

// a * b + c, rounded once where that costs no more than twice.
ORTHANT_HOST_DEVICE inline float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FP_FAST_FMAF)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// What a step of AdamW has in common for all elements.
struct AdamWTerms {
  AdamWTerms() = default;
  explicit AdamWTerms(const AdamW& how)
      : rate(how.lr / how.correction1),
        inverse_root(1.0f / std::sqrt(how.correction2)),
        decay(multiply_add(-how.lr, how.weight_decay, 1.0f)),
        beta1(how.beta1),
        beta2(how.beta2),
        eps(how.eps) {}
  float rate, inverse_root, decay, beta1, beta2, eps;
};

// v_hat = v / correction2: its root is taken of v, and scaled.
ORTHANT_HOST_DEVICE inline void adamw_element(float& p, float& m, float& v, float gradient, const AdamWTerms& t) {
  m = multiply_add(t.beta1, m, (1.0f - t.beta1) * gradient);
  v = multiply_add(t.beta2, v, (1.0f - t.beta2) * gradient * gradient);
  p = multiply_add(p, t.decay, -(t.rate * m / multiply_add(std::sqrt(v), t.inverse_root, t.eps)));
}

// m = momentum * m + (g + weight_decay * p), where g = gradient * factor; p -= lr * m.
ORTHANT_HOST_DEVICE inline void sgd_element(float& p, float& m, float gradient, float factor, const Sgd& how) {
  m = multiply_add(how.momentum, m, multiply_add(gradient, factor, how.weight_decay * p));
  p = multiply_add(-how.lr, m, p);
}

// p = p * decay - lr * u, with decay = 1 - lr * weight_decay.
ORTHANT_HOST_DEVICE inline float descend_element(float p, float u, float lr, float decay) {
  return multiply_add(p, decay, -(lr * u));
}

}  // namespace orthant
