// AdamW (Loshchilov and Hutter, 2019), SGD with momentum, what other optimizers are made of, and the clipping factor:
// one pass over the parameters each.
#include <cmath>
#include <limits>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t grain = 1 << 14;

}  // namespace

void CpuStream::adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v, const Tensor& grad,
                      const Tensor& factor, const AdamW& how) {
  check_optimizer("adamw", master, weight, grad, factor);
  check_optimizer_state("adamw", "m", m, master);
  check_optimizer_state("adamw", "v", v, master);
  const float clip = *factor.as<float>();
  if (std::isnan(clip)) {
    return;
  }
  // v_hat = v / correction2: its root is taken of v, and scaled.
  const float rate = how.lr / how.correction1, inverse_root = 1.0f / std::sqrt(how.correction2);
  const float decay = 1.0f - how.lr * how.weight_decay;
  const float beta1 = how.beta1, beta2 = how.beta2, eps = how.eps;
  float *p = master.as<float>(), *first = m.as<float>(), *second = v.as<float>();
  const float* g = grad.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads_, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const float gi = g[i] * clip;
        const float mi = beta1 * first[i] + (1.0f - beta1) * gi;
        const float vi = beta2 * second[i] + (1.0f - beta2) * gi * gi;
        const float x = p[i] * decay - rate * mi / (std::sqrt(vi) * inverse_root + eps);
        first[i] = mi;
        second[i] = vi;
        p[i] = x;
        w[i] = from_float<T>(x);
      }
    });
  });
}

// m = momentum * m + (g + weight_decay * p); p -= lr * m.
void CpuStream::sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                    const Tensor& factor, const Sgd& how) {
  check_optimizer("sgd", master, weight, grad, factor);
  check_optimizer_state("sgd", "m", m, master);
  const float clip = *factor.as<float>();
  if (std::isnan(clip)) {
    return;
  }
  const float lr = how.lr, momentum = how.momentum, decay = how.weight_decay;
  float *p = master.as<float>(), *state = m.as<float>();
  const float* g = grad.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads_, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const float mi = momentum * state[i] + (g[i] * clip + decay * p[i]);
        const float x = p[i] - lr * mi;
        state[i] = mi;
        p[i] = x;
        w[i] = from_float<T>(x);
      }
    });
  });
}

void CpuStream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                        float weight_decay) {
  check_optimizer("descend", master, weight, u, finite);
  if (std::isnan(*finite.as<float>())) {
    return;
  }
  const float decay = 1.0f - lr * weight_decay;
  float* p = master.as<float>();
  const float* by = u.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads_, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const float x = p[i] * decay - lr * by[i];
        p[i] = x;
        w[i] = from_float<T>(x);
      }
    });
  });
}

void CpuStream::normalize(const Tensor& x, const Tensor& sum_squares, float eps) {
  check_normalize(x, sum_squares);
  const float scale = static_cast<float>(1.0 / (std::sqrt(*sum_squares.as<double>()) + static_cast<double>(eps)));
  float* values = x.as<float>();
  parallel_for(threads_, x.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      values[i] *= scale;
    }
  });
}

void CpuStream::clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss, float max_norm) {
  check_clip_factor(factor, sum_squares, loss);
  const double squares = *sum_squares.as<double>();
  double value = 1.0;
  if (!std::isfinite(squares) || !std::isfinite(*loss.as<double>())) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (max_norm > 0.0f && squares > 0.0) {
    value = std::min(1.0, static_cast<double>(max_norm) / std::sqrt(squares));
  }
  *factor.as<float>() = static_cast<float>(value);
}

}  // namespace orthant
