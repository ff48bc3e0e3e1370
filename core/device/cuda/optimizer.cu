// AdamW (Loshchilov and Hutter, 2019), SGD with momentum, what other optimizers are made of, and the clipping factor:
// one pass over the parameters each.
#include <cmath>
#include <limits>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

// What both optimizers read and write.
template <class W>
struct ParameterState {
  float* p;
  W* weight;  // may be p itself
  float* m;
  const float *g, *factor;
  template <int n>
  struct Loaded {
    float p[n], m[n], g[n], factor;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t i) const {
    load_vector(l.p, p + i);
    load_vector(l.m, m + i);
    load_vector(l.g, g + i);
    l.factor = *factor;
  }
  template <int n>
  __device__ void store(std::int64_t i, const float (&next_p)[n], const float (&next_m)[n]) const {
    store_vector(m + i, next_m);
    store_vector(p + i, next_p);
    if (static_cast<void*>(weight) != static_cast<void*>(p)) {
      store_vector(weight + i, next_p);
    }
  }
};

// Floor: p, m, v and g read, p, m and v written, 28 bytes a parameter; and the weight where it is another tensor.
template <class W>
struct AdamBody {
  ParameterState<W> state;
  float* v;
  float rate, inverse_root, decay, beta1, beta2, eps;
  template <int n>
  struct Loaded : ParameterState<W>::template Loaded<n> {
    float v[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    state.load(l, i);
    load_vector(l.v, v + i);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    if (isnan(l.factor)) {
      return;
    }
    float next_p[n], next_m[n], next_v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float gradient = l.g[j] * l.factor;
      next_m[j] = beta1 * l.m[j] + (1.0f - beta1) * gradient;
      next_v[j] = beta2 * l.v[j] + (1.0f - beta2) * gradient * gradient;
      next_p[j] = l.p[j] * decay - rate * next_m[j] / (sqrtf(next_v[j]) * inverse_root + eps);
    }
    store_vector(v + i, next_v);
    state.store(i, next_p, next_m);
  }
};

// m = momentum * m + (g + weight_decay * p); p -= lr * m. Floor: 20 bytes a parameter, and the weight.
template <class W>
struct SgdBody {
  ParameterState<W> state;
  float lr, momentum, decay;
  template <int n>
  struct Loaded : ParameterState<W>::template Loaded<n> {};
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    state.load(l, i);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    if (isnan(l.factor)) {
      return;
    }
    float next_p[n], next_m[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      next_m[j] = momentum * l.m[j] + (l.g[j] * l.factor + decay * l.p[j]);
      next_p[j] = l.p[j] - lr * next_m[j];
    }
    state.store(i, next_p, next_m);
  }
};

// p = p * decay - lr * u. Floor: 12 bytes a parameter, and the weight.
template <class W>
struct DescendBody {
  float* p;
  W* weight;  // may be p itself
  const float *u, *finite;
  float lr, decay;
  template <int n>
  struct Loaded {
    float p[n], u[n], finite;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    load_vector(l.p, p + i);
    load_vector(l.u, u + i);
    l.finite = *finite;
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    if (isnan(l.finite)) {
      return;
    }
    float next[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      next[j] = l.p[j] * decay - lr * l.u[j];
    }
    store_vector(p + i, next);
    if (static_cast<void*>(weight) != static_cast<void*>(p)) {
      store_vector(weight + i, next);
    }
  }
};

// Floor: 8 bytes an element.
struct NormalizeBody {
  float* x;
  const double* sum_squares;
  double eps;
  template <int n>
  struct Loaded {
    float x[n], scale;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    load_vector(l.x, x + i);
    l.scale = static_cast<float>(1.0 / (sqrt(*sum_squares) + eps));
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    float next[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      next[j] = l.x[j] * l.scale;
    }
    store_vector(x + i, next);
  }
};

constexpr double update_not_a_number = std::numeric_limits<double>::quiet_NaN();

__global__ void clip(float* factor, const double* sum_squares, const double* loss, double max_norm) {
  if (threadIdx.x == 0) {
    const double squares = *sum_squares;
    double value = 1.0;
    if (!isfinite(squares) || !isfinite(*loss)) {
      value = update_not_a_number;
    } else if (max_norm > 0.0 && squares > 0.0) {
      value = fmin(1.0, max_norm / sqrt(squares));
    }
    *factor = static_cast<float>(value);
  }
}

}  // namespace

void CudaStream::adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v, const Tensor& grad,
                       const Tensor& factor, const AdamW& how) {
  check_optimizer("adamw", master, weight, grad, factor);
  check_optimizer_state("adamw", "m", m, master);
  check_optimizer_state("adamw", "v", v, master);
  // v_hat = v / correction2: its root is taken of v, and scaled.
  const float rate = how.lr / how.correction1, inverse_root = 1.0f / std::sqrt(how.correction2);
  const float decay = 1.0f - how.lr * how.weight_decay;
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const ParameterState<W> state{master.as<float>(), weight.as<W>(), m.as<float>(), grad.as<float>(),
                                  factor.as<float>()};
    const AdamBody<W> body{state, v.as<float>(), rate, inverse_root, decay, how.beta1, how.beta2, how.eps};
    for_each_chunk<4, 2>(*this, body, 1, master.elements(),
                         all_aligned<4>(state.p, state.weight, state.m, state.g, body.v));
  });
}

void CudaStream::sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                     const Tensor& factor, const Sgd& how) {
  check_optimizer("sgd", master, weight, grad, factor);
  check_optimizer_state("sgd", "m", m, master);
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const ParameterState<W> state{master.as<float>(), weight.as<W>(), m.as<float>(), grad.as<float>(),
                                  factor.as<float>()};
    const SgdBody<W> body{state, how.lr, how.momentum, how.weight_decay};
    for_each_chunk<4, 2>(*this, body, 1, master.elements(), all_aligned<4>(state.p, state.weight, state.m, state.g));
  });
}

void CudaStream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                         float weight_decay) {
  check_optimizer("descend", master, weight, u, finite);
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const DescendBody<W> body{master.as<float>(),      weight.as<W>(), u.as<float>(), finite.as<float>(), lr,
                              1.0f - lr * weight_decay};
    for_each_chunk<4, 2>(*this, body, 1, master.elements(), all_aligned<4>(body.p, body.weight, body.u));
  });
}

void CudaStream::normalize(const Tensor& x, const Tensor& sum_squares, float eps) {
  check_normalize(x, sum_squares);
  const NormalizeBody body{x.as<float>(), sum_squares.as<double>(), static_cast<double>(eps)};
  for_each_chunk<4, 2>(*this, body, 1, x.elements(), all_aligned<4>(body.x));
}

void CudaStream::clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss, float max_norm) {
  check_clip_factor(factor, sum_squares, loss);
  launch(clip, Grid{1, warp_threads}, stream_, factor.as<float>(), sum_squares.as<double>(), loss.as<double>(),
         max_norm);
}

}  // namespace orthant::cuda
