// AdamW (Loshchilov and Hutter, 2019), SGD with momentum, what other optimizers are made of, and the clipping factor:
// one pass over the parameters each.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"
#include "core/device/update_rules.h"

namespace orthant::cuda {
namespace {

// What both optimizers change.
template <class W>
struct ParameterState {
  float* p;
  W* weight;  // may be p itself
  float* m;
  template <int n>
  struct Loaded {
    float p[n], m[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t i) const {
    load_vector(l.p, p + i);
    load_vector(l.m, m + i);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t i) const {
    store_vector(m + i, l.m);
    store_vector(p + i, l.p);
    if (static_cast<void*>(weight) != static_cast<void*>(p)) {
      store_vector(weight + i, l.p);
    }
  }
};

struct Gradient {
  const float *g, *factor;
  template <int n>
  struct Loaded {
    float g[n], factor;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t i) const {
    load_vector(l.g, g + i);
    l.factor = *factor;
  }
};

// Floor: p, m, v and g read, p, m and v written, 28 bytes a parameter; and the weight where it is another tensor.
template <class W>
struct AdamBody {
  ParameterState<W> state;
  float* v;
  Gradient gradient;
  AdamWTerms terms;
  template <int n>
  struct Loaded : ParameterState<W>::template Loaded<n>, Gradient::Loaded<n> {
    float v[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    state.template load<n>(l, i);
    gradient.load<n>(l, i);
    load_vector(l.v, v + i);
  }
  template <int n>
  __device__ void store(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    if (isnan(l.factor)) {
      return;
    }
#pragma unroll
    for (int j = 0; j < n; ++j) {
      adamw_element(l.p[j], l.m[j], l.v[j], l.g[j] * l.factor, terms);
    }
    store_vector(v + i, l.v);
    state.template store<n>(l, i);
  }
};

// Floor: 20 bytes a parameter, and the weight.
template <class W>
struct SgdBody {
  ParameterState<W> state;
  Gradient gradient;
  Sgd how;
  template <int n>
  struct Loaded : ParameterState<W>::template Loaded<n>, Gradient::Loaded<n> {};
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    state.template load<n>(l, i);
    gradient.load<n>(l, i);
  }
  template <int n>
  __device__ void store(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    if (isnan(l.factor)) {
      return;
    }
#pragma unroll
    for (int j = 0; j < n; ++j) {
      sgd_element(l.p[j], l.m[j], l.g[j], l.factor, how);
    }
    state.template store<n>(l, i);
  }
};

// Missed steps of one launch: they travel as an argument of the kernel, of which 4 KiB are safe.
constexpr int replay_steps = 64;
template <class Step>
struct MissedSteps {
  Step step[replay_steps];
  int count;
  // Of every missed step. Numbers that the compiler knew, it could fold into another rounding.
  float gradient = 0.0f, factor = 1.0f;
};

// Floor: 24 bytes a parameter, and the weight; a root and a division for each step.
template <class W>
struct AdamReplayBody {
  ParameterState<W> state;
  float* v;
  MissedSteps<AdamWTerms> missed;
  template <int n>
  struct Loaded : ParameterState<W>::template Loaded<n> {
    float v[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    state.template load<n>(l, i);
    load_vector(l.v, v + i);
  }
  template <int n>
  __device__ void store(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    for (int s = 0; s < missed.count; ++s) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        adamw_element(l.p[j], l.m[j], l.v[j], missed.gradient * missed.factor, missed.step[s]);
      }
    }
    store_vector(v + i, l.v);
    state.template store<n>(l, i);
  }
};

// Floor: 16 bytes a parameter, and the weight.
template <class W>
struct SgdReplayBody {
  ParameterState<W> state;
  MissedSteps<Sgd> missed;
  template <int n>
  struct Loaded : ParameterState<W>::template Loaded<n> {};
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    state.template load<n>(l, i);
  }
  template <int n>
  __device__ void store(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    for (int s = 0; s < missed.count; ++s) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        sgd_element(l.p[j], l.m[j], missed.gradient, missed.factor, missed.step[s]);
      }
    }
    state.template store<n>(l, i);
  }
};

// Calls launch(missed) for `steps`, as many at a time as one launch takes.
template <class Terms, class Step, class F>
void each_launch(std::span<const Step> steps, F&& launch) {
  for (std::size_t begin = 0; begin < steps.size(); begin += replay_steps) {
    const auto some = steps.subspan(begin, std::min<std::size_t>(replay_steps, steps.size() - begin));
    MissedSteps<Terms> missed{};
    missed.count = static_cast<int>(some.size());
    std::transform(some.begin(), some.end(), missed.step, [](const Step& step) { return Terms(step); });
    launch(missed);
  }
}

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
      next[j] = descend_element(l.p[j], l.u[j], lr, decay);
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
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const AdamBody<W> body{{master.as<float>(), weight.as<W>(), m.as<float>()},
                           v.as<float>(),
                           {grad.as<float>(), factor.as<float>()},
                           AdamWTerms(how)};
    for_each_chunk<4, 2>(*this, body, 1, master.elements(),
                         all_aligned<4>(body.state.p, body.state.weight, body.state.m, body.v, body.gradient.g));
  });
}

void CudaStream::adamw_replay(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                              std::span<const AdamW> steps) {
  check_replay("adamw_replay", master, weight);
  check_optimizer_state("adamw_replay", "m", m, master);
  check_optimizer_state("adamw_replay", "v", v, master);
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const ParameterState<W> state{master.as<float>(), weight.as<W>(), m.as<float>()};
    each_launch<AdamWTerms>(steps, [&](const MissedSteps<AdamWTerms>& missed) {
      const AdamReplayBody<W> body{state, v.as<float>(), missed};
      for_each_chunk<4, 2>(*this, body, 1, master.elements(), all_aligned<4>(state.p, state.weight, state.m, body.v));
    });
  });
}

void CudaStream::sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                     const Tensor& factor, const Sgd& how) {
  check_optimizer("sgd", master, weight, grad, factor);
  check_optimizer_state("sgd", "m", m, master);
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const SgdBody<W> body{
        {master.as<float>(), weight.as<W>(), m.as<float>()}, {grad.as<float>(), factor.as<float>()}, how};
    for_each_chunk<4, 2>(*this, body, 1, master.elements(),
                         all_aligned<4>(body.state.p, body.state.weight, body.state.m, body.gradient.g));
  });
}

void CudaStream::sgd_replay(const Tensor& master, const Tensor& weight, const Tensor& m, std::span<const Sgd> steps) {
  check_replay("sgd_replay", master, weight);
  check_optimizer_state("sgd_replay", "m", m, master);
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const ParameterState<W> state{master.as<float>(), weight.as<W>(), m.as<float>()};
    each_launch<Sgd>(steps, [&](const MissedSteps<Sgd>& missed) {
      const SgdReplayBody<W> body{state, missed};
      for_each_chunk<4, 2>(*this, body, 1, master.elements(), all_aligned<4>(state.p, state.weight, state.m));
    });
  });
}

void CudaStream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                         float weight_decay) {
  check_optimizer("descend", master, weight, u, finite);
  with_float_type(weight.dtype(), [&](auto type) {
    using W = decltype(type);
    const DescendBody<W> body{master.as<float>(),
                              weight.as<W>(),
                              u.as<float>(),
                              finite.as<float>(),
                              lr,
                              multiply_add(-lr, weight_decay, 1.0f)};
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
