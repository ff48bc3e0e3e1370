// Attention sinks: a score of each head that joins the softmax after all keys have.
#include <cmath>
#include <limits>

#include "core/device/attention_check.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"

namespace orthant {

void CpuStream::attention_sinks(const Tensor& o, const Tensor& lse, const Tensor& sinks, const AttentionShape& shape) {
  check_attention_sinks("attention_sinks", o, lse, sinks, shape);
  const std::int64_t positions = shape.positions, heads = shape.heads, c = shape.head_dim;
  const std::int64_t rows = shape.batch * positions, width = heads * c;
  with_float_type(o.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, rows, 8192 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          float& total = lse.as<float>()[(t / positions * heads + h) * positions + t % positions];
          const float sink = sinks.as<float>()[h];
          if (sink == -std::numeric_limits<float>::infinity()) {
            continue;  // it adds nothing, also where nothing was seen
          }
          const float top = std::max(total, sink);
          const float keys = std::exp(total - top), sum = keys + std::exp(sink - top), keep = keys / sum;
          T* const to = o.as<T>() + t * width + h * c;
#pragma omp simd
          for (std::int64_t e = 0; e < c; ++e) {
            to[e] = from_float<T>(keep * to_float(to[e]));
          }
          total = top + std::log(sum);
        }
      }
    });
  });
}

void CpuStream::attention_sinks_backward(const Tensor& dsinks, const Tensor& d_o, const Tensor& o, const Tensor& lse,
                                         const Tensor& sinks, const AttentionShape& shape) {
  check_attention_sinks_backward(dsinks, d_o, o, lse, sinks, shape);
  const std::int64_t positions = shape.positions, heads = shape.heads, c = shape.head_dim;
  const std::int64_t rows = shape.batch * positions, width = heads * c;
  with_float_type(o.dtype(), [&](auto type) {
    using T = decltype(type);
    for (std::int64_t h = 0; h < heads; ++h) {
      const float sink = sinks.as<float>()[h];
      const double sum = block_sum(threads_, rows, [&](std::int64_t begin, std::int64_t end) {
        double part = 0;
        for (std::int64_t t = begin; t < end; ++t) {
          const T *const a = d_o.as<T>() + t * width + h * c, *const b = o.as<T>() + t * width + h * c;
          float dot = 0;
#pragma omp simd reduction(+ : dot)
          for (std::int64_t e = 0; e < c; ++e) {
            dot += to_float(a[e]) * to_float(b[e]);
          }
          const float total = lse.as<float>()[(t / positions * heads + h) * positions + t % positions];
          part += static_cast<double>(std::exp(sink - total) * dot);
        }
        return part;
      });
      dsinks.as<float>()[h] -= static_cast<float>(sum);
    }
  });
}

}  // namespace orthant
