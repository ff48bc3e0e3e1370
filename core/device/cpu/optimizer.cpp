// AdamW (Loshchilov and Hutter, 2019), SGD with momentum, what other optimizers are made of, and the clipping factor:
// one pass over the parameters each.
#include <cmath>
#include <limits>
#include <vector>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"
#include "core/device/update_rules.h"

namespace orthant {
namespace {

constexpr std::int64_t grain = 1 << 14;

// Elements whose master and state stay in the first cache through all steps of a replay.
constexpr std::int64_t replay_block = 2048;

// Calls steps(begin, end) for blocks of `master`, which runs them through all missed steps, and writes their weights.
template <class F>
void replay_blocks(int threads, const Tensor& master, const Tensor& weight, F&& steps) {
  const float* p = master.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end; first += replay_block) {
        const std::int64_t last = std::min(first + replay_block, end);
        steps(first, last);
#pragma omp simd
        for (std::int64_t i = first; i < last; ++i) {
          w[i] = from_float<T>(p[i]);
        }
      }
    });
  });
}

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
  const AdamWTerms terms(how);
  float *p = master.as<float>(), *first = m.as<float>(), *second = v.as<float>();
  const float* g = grad.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads_, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        float x = p[i], mi = first[i], vi = second[i];
        adamw_element(x, mi, vi, g[i] * clip, terms);
        first[i] = mi;
        second[i] = vi;
        p[i] = x;
        w[i] = from_float<T>(x);
      }
    });
  });
}

void CpuStream::adamw_replay(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                             std::span<const AdamW> steps) {
  check_replay("adamw_replay", master, weight);
  check_optimizer_state("adamw_replay", "m", m, master);
  check_optimizer_state("adamw_replay", "v", v, master);
  if (steps.empty()) {
    return;
  }
  const std::vector<AdamWTerms> missed(steps.begin(), steps.end());
  float *p = master.as<float>(), *first = m.as<float>(), *second = v.as<float>();
  replay_blocks(threads_, master, weight, [&](std::int64_t begin, std::int64_t end) {
    for (const AdamWTerms& terms : missed) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        adamw_element(p[i], first[i], second[i], 0.0f, terms);
      }
    }
  });
}

void CpuStream::sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                    const Tensor& factor, const Sgd& how) {
  check_optimizer("sgd", master, weight, grad, factor);
  check_optimizer_state("sgd", "m", m, master);
  const float clip = *factor.as<float>();
  if (std::isnan(clip)) {
    return;
  }
  float *p = master.as<float>(), *state = m.as<float>();
  const float* g = grad.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads_, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        float x = p[i], mi = state[i];
        sgd_element(x, mi, g[i], clip, how);
        state[i] = mi;
        p[i] = x;
        w[i] = from_float<T>(x);
      }
    });
  });
}

void CpuStream::sgd_replay(const Tensor& master, const Tensor& weight, const Tensor& m, std::span<const Sgd> steps) {
  check_replay("sgd_replay", master, weight);
  check_optimizer_state("sgd_replay", "m", m, master);
  if (steps.empty()) {
    return;
  }
  float *p = master.as<float>(), *state = m.as<float>();
  replay_blocks(threads_, master, weight, [&](std::int64_t begin, std::int64_t end) {
    for (const Sgd& how : steps) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        sgd_element(p[i], state[i], 0.0f, 1.0f, how);
      }
    }
  });
}

void CpuStream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                        float weight_decay) {
  check_optimizer("descend", master, weight, u, finite);
  if (std::isnan(*finite.as<float>())) {
    return;
  }
  const float decay = multiply_add(-lr, weight_decay, 1.0f);
  float* p = master.as<float>();
  const float* by = u.as<float>();
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    T* w = weight.as<T>();
    parallel_for(threads_, master.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const float x = descend_element(p[i], by[i], lr, decay);
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
