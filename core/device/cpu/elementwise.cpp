// add, multiply and scale.
#include <algorithm>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {
constexpr std::int64_t grain = 1 << 15;

// y = f(y, x), element by element.
template <class F>
void combine_into(const Tensor& y, const Tensor& x, int threads, F f) {
  with_float_type(y.dtype(), [&](auto ty) {
    with_float_type(x.dtype(), [&](auto tx) {
      using Y = decltype(ty);
      using X = decltype(tx);
      Y* to = y.as<Y>();
      const X* from = x.as<X>();
      parallel_for(threads, x.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          to[i] = from_float<Y>(f(to_float(to[i]), to_float(from[i])));
        }
      });
    });
  });
}

}  // namespace

void CpuStream::add(const Tensor& y, const Tensor& x) {
  check_add(y, x);
  if (y.dtype() == DType::i64) {
    std::transform(y.as<std::int64_t>(), y.as<std::int64_t>() + y.elements(), x.as<std::int32_t>(),
                   y.as<std::int64_t>(), [](std::int64_t a, std::int32_t b) { return a + b; });
    return;
  }
  combine_into(y, x, threads_, [](float a, float b) { return a + b; });
}

void CpuStream::multiply(const Tensor& y, const Tensor& x) {
  check_multiply(y, x);
  combine_into(y, x, threads_, [](float a, float b) { return a * b; });
}

void CpuStream::scale(const Tensor& y, float a) {
  require_float("scale", "y", y);
  with_float_type(y.dtype(), [&](auto ty) {
    using Y = decltype(ty);
    Y* to = y.as<Y>();
    parallel_for(threads_, y.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = from_float<Y>(a * to_float(to[i]));
      }
    });
  });
}

}  // namespace orthant
