// What random numbers decide: initial weights, dropout, jitter. Numbers are keyed by *global* indices, so the layout
// of ranks changes nothing.
#include <orthant/random.h>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t grain = 1 << 10;

// y[t, j] = x[t, j] * factor(token[t] * global_columns + column_begin + j).
template <class F>
void scale_by(int threads, const Tensor& y, const Tensor& x, const Tensor& token, std::int64_t global_columns,
              std::int64_t column_begin, F&& factor) {
  const std::int64_t d = x.dim(1);
  const auto* tokens = token.as<std::int64_t>();
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads, x.dim(0), grain / (d + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* in = x.as<T>() + t * d;
        T* out = y.as<T>() + t * d;
        const auto base = static_cast<std::uint64_t>(tokens[t] * global_columns + column_begin);
#pragma omp simd
        for (std::int64_t j = 0; j < d; ++j) {
          out[j] = from_float<T>(to_float(in[j]) * factor(base + static_cast<std::uint64_t>(j)));
        }
      }
    });
  });
}

}  // namespace

void CpuStream::init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) {
  check_init_normal(w);
  const std::int64_t columns = w.dim(1);
  parallel_for(threads_, w.dim(0), grain / (columns + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t base = (at.row_begin + r) * at.global_columns + at.column_begin;
      for (std::int64_t j = 0; j < columns; ++j) {
        w.as<float>()[r * columns + j] = std * normal(key, static_cast<std::uint64_t>(base + j));
      }
    }
  });
}

void CpuStream::dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
                        const SliceMap& at) {
  check_dropout(y, x, token, p);
  const float kept = 1.0f / (1.0f - p);
  scale_by(threads_, y, x, token, at.global_columns, at.column_begin,
           [=](std::uint64_t index) { return uniform(key, index) < p ? 0.0f : kept; });
}

void CpuStream::jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) {
  check_random_scale("jitter", y, x, token);
  scale_by(threads_, y, x, token, x.dim(1), 0,
           [=](std::uint64_t index) { return 1.0f - e + 2.0f * e * uniform(key, index); });
}

}  // namespace orthant
