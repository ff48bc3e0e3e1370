// LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019).
#include <cmath>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

std::int64_t row_grain(std::int64_t d) {
  return 8192 / (d + 1) + 1;
}

// mean and 1 / deviation of a row; the mean is 0 for RMSNorm.
template <class T>
void row_stats(const T* x, std::int64_t d, NormKind kind, float eps, float* stats) {
  float mean = 0.0f;
  if (kind == NormKind::layernorm) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < d; ++j) {
      sum += to_float(x[j]);
    }
    mean = sum / static_cast<float>(d);
  }
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t j = 0; j < d; ++j) {
    const float v = to_float(x[j]) - mean;
    squares += v * v;
  }
  stats[0] = mean;
  stats[1] = 1.0f / std::sqrt(squares / static_cast<float>(d) + eps);
}

// dx += the gradient of one row; dweight, dbias += its share.
template <class T>
void row_backward(T* dx, float* dweight, float* dbias, const T* dy, const T* x, const float* stats, const float* weight,
                  std::int64_t d, NormKind kind) {
  const float mean = stats[0], inverse = stats[1];
  float sum = 0.0f, product = 0.0f;  // of g = dy * weight, and of g * xhat
#pragma omp simd reduction(+ : sum, product)
  for (std::int64_t j = 0; j < d; ++j) {
    const float xhat = (to_float(x[j]) - mean) * inverse, g = to_float(dy[j]) * weight[j];
    sum += g;
    product += g * xhat;
  }
  const float shift = kind == NormKind::layernorm ? sum / static_cast<float>(d) : 0.0f;
  const float slope = product / static_cast<float>(d);
#pragma omp simd
  for (std::int64_t j = 0; j < d; ++j) {
    const float out = to_float(dy[j]), xhat = (to_float(x[j]) - mean) * inverse;
    dx[j] = from_float<T>(to_float(dx[j]) + inverse * (out * weight[j] - shift - xhat * slope));
    dweight[j] += out * xhat;
  }
  if (dbias != nullptr) {
#pragma omp simd
    for (std::int64_t j = 0; j < d; ++j) {
      dbias[j] += to_float(dy[j]);
    }
  }
}

}  // namespace

void CpuStream::norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     NormKind kind, float eps) {
  check_norm(y, stats, x, weight, bias);
  const std::int64_t rows = x.dim(0), d = x.dim(1);
  const float *w = weight.as<float>(), *b = bias.as<float>();
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, rows, row_grain(d), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* in = x.as<T>() + t * d;
        T* out = y.as<T>() + t * d;
        float* s = stats.as<float>() + t * 2;
        row_stats(in, d, kind, eps, s);
        const float mean = s[0], inverse = s[1];
        if (b != nullptr) {
#pragma omp simd
          for (std::int64_t j = 0; j < d; ++j) {
            out[j] = from_float<T>((to_float(in[j]) - mean) * inverse * w[j] + b[j]);
          }
        } else {
#pragma omp simd
          for (std::int64_t j = 0; j < d; ++j) {
            out[j] = from_float<T>((to_float(in[j]) - mean) * inverse * w[j]);
          }
        }
      }
    });
  });
}

// dweight and dbias are summed per block of rows, then over the blocks in order: the blocks depend on T alone.
void CpuStream::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                              const Tensor& x, const Tensor& stats, const Tensor& weight, NormKind kind) {
  check_norm_backward(dx, dweight, dbias, dy, x, stats, weight);
  const std::int64_t rows = x.dim(0), d = x.dim(1);
  const std::int64_t blocks = std::clamp<std::int64_t>(rows / 32, 1, 32);
  auto* partial = static_cast<float*>(scratch(0, static_cast<std::size_t>(blocks * 2 * d) * sizeof(float)));
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, blocks, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t block = first; block < last; ++block) {
        float* dw = partial + block * 2 * d;
        std::fill(dw, dw + 2 * d, 0.0f);
        for (std::int64_t t = rows * block / blocks; t < rows * (block + 1) / blocks; ++t) {
          row_backward(dx.as<T>() + t * d, dw, dbias.defined() ? dw + d : nullptr, dy.as<T>() + t * d,
                       x.as<T>() + t * d, stats.as<float>() + t * 2, weight.as<float>(), d, kind);
        }
      }
    });
  });
  const auto add_blocks = [&](float* to, const float* from) {
    for (std::int64_t block = 0; block < blocks; ++block) {
#pragma omp simd
      for (std::int64_t j = 0; j < d; ++j) {
        to[j] += from[block * 2 * d + j];
      }
    }
  };
  add_blocks(dweight.as<float>(), partial);
  if (dbias.defined()) {
    add_blocks(dbias.as<float>(), partial + d);
  }
}

}  // namespace orthant
