// pack, combine and their adjoints: copies of token rows, in parallel over the rows that are written.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/cpu/part_sum.h"
#include "core/device/router_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t grain = 16;  // rows worth a thread

// The sum over a row, in a fixed order of its own.
template <class X>
float dot(const X* a, const X* b, std::int64_t n) {
  return sum_by_parts(n, [&](std::int64_t begin, std::int64_t end) {
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (std::int64_t j = begin; j < end; ++j) {
      part += to_float(a[j]) * to_float(b[j]);
    }
    return part;
  });
}

// sum[j] += a * x[j]
template <class X>
void add_scaled(float* sum, float a, const X* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) {
    sum[j] += a * to_float(x[j]);
  }
}

template <class X>
void set(X* y, const float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) {
    y[j] = from_float<X>(x[j]);
  }
}

template <class X>
void add(X* y, const float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) {
    y[j] = from_float<X>(to_float(y[j]) + x[j]);
  }
}

// y[t] (+)= sum over k of weight[t, k] (1 where weight is null) * rows[row[t, k]].
template <class X>
void gather_sum(int threads, X* y, const X* rows, const std::int32_t* row, const float* weight, std::int64_t tokens,
                std::int64_t k_count, std::int64_t d, bool accumulate) {
  parallel_for(threads, tokens, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(d);
    for (std::int64_t t = begin; t < end; ++t) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (std::int64_t choice = t * k_count; choice < (t + 1) * k_count; ++choice) {
        if (row[choice] >= 0) {
          add_scaled(sum.data(), weight == nullptr ? 1.0f : weight[choice], rows + row[choice] * d, d);
        }
      }
      if (accumulate) {
        add(y + t * d, sum.data(), d);
      } else {
        set(y + t * d, sum.data(), d);
      }
    }
  });
}

}  // namespace

void CpuStream::pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) {
  check_pack(rows, x, row, source);
  const std::int64_t top_k = row.dim(1);
  const std::size_t bytes = static_cast<std::size_t>(x.dim(1)) * size_of(x.dtype());
  const std::int32_t* const from = source.as<std::int32_t>();
  parallel_for(threads_, rows.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::byte* const to = rows.as<std::byte>() + static_cast<std::size_t>(r) * bytes;
      if (from[r] < 0) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, x.as<std::byte>() + static_cast<std::size_t>(from[r] / top_k) * bytes, bytes);
      }
    }
  });
}

void CpuStream::pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) {
  check_pack_backward(dx, drows, row);
  with_float_type(dx.dtype(), [&](auto type) {
    using X = decltype(type);
    gather_sum(threads_, dx.as<X>(), drows.as<X>(), row.as<std::int32_t>(), nullptr, dx.dim(0), row.dim(1), dx.dim(1),
               accumulate);
  });
}

void CpuStream::combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight, bool accumulate) {
  check_combine(y, rows, row, weight);
  with_float_type(y.dtype(), [&](auto type) {
    using X = decltype(type);
    gather_sum(threads_, y.as<X>(), rows.as<X>(), row.as<std::int32_t>(), weight.as<float>(), y.dim(0), row.dim(1),
               y.dim(1), accumulate);
  });
}

void CpuStream::combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                                 const Tensor& row, const Tensor& source, const Tensor& weight) {
  check_combine_backward(drows, dweight, dy, rows, row, source, weight);
  const std::int64_t tokens = dy.dim(0), d = dy.dim(1), k_count = row.dim(1);
  with_float_type(dy.dtype(), [&](auto type) {
    using X = decltype(type);
    const X* const dy_rows = dy.as<X>();
    const std::size_t row_bytes = static_cast<std::size_t>(d) * sizeof(X);
    parallel_for(threads_, rows.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (source.as<std::int32_t>()[r] < 0) {
          std::memset(drows.as<X>() + r * d, 0, row_bytes);
        }
      }
    });
    // A kept choice is read and written by its token's thread alone: each packed row belongs to one choice.
    parallel_for(threads_, tokens, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t choice = begin * k_count; choice < end * k_count; ++choice) {
        const std::int32_t r = row.as<std::int32_t>()[choice];
        if (r < 0) {
          dweight.as<float>()[choice] = 0;
          continue;
        }
        const X* const g = dy_rows + choice / k_count * d;
        const float w = weight.as<float>()[choice];
        dweight.as<float>()[choice] = dot(g, rows.as<X>() + r * d, d);
        X* const out = drows.as<X>() + r * d;
#pragma omp simd
        for (std::int64_t j = 0; j < d; ++j) {
          out[j] = from_float<X>(w * to_float(g[j]));
        }
      }
    });
  });
}

}  // namespace orthant
