// add and scale.
#include <algorithm>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {
constexpr std::int64_t grain = 1 << 15;
}

void CpuStream::add(const Tensor& y, const Tensor& x) {
  check_add(y, x);
  if (y.dtype() == DType::i64) {
    std::transform(y.as<std::int64_t>(), y.as<std::int64_t>() + y.elements(), x.as<std::int32_t>(),
                   y.as<std::int64_t>(), [](std::int64_t a, std::int32_t b) { return a + b; });
    return;
  }
  with_float_type(y.dtype(), [&](auto ty) {
    with_float_type(x.dtype(), [&](auto tx) {
      using Y = decltype(ty);
      using X = decltype(tx);
      Y* to = y.as<Y>();
      const X* from = x.as<X>();
      parallel_for(threads_, x.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          to[i] = from_float<Y>(to_float(to[i]) + to_float(from[i]));
        }
      });
    });
  });
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
