// quantise and dequantise.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/storage_types.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t element_grain = 1 << 15;

// Calls fn(q's element, x's element, first, end of a block, its number) for all blocks.
template <class F>
void for_each_block(int threads, const Tensor& q, const Tensor& x, std::int64_t block, F fn) {
  const std::int64_t n = x.elements(), blocks = (n + block - 1) / block;
  with_storage_type(q.dtype(), [&](auto narrow) {
    with_float_type(x.dtype(), [&](auto wide) {
      parallel_for(threads, blocks, element_grain / block + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
          fn(narrow, wide, b * block, std::min(n, (b + 1) * block), b);
        }
      });
    });
  });
}

}  // namespace

void CpuStream::quantise(const Tensor& q, const Tensor& scale, const Tensor& x, std::int64_t block) {
  check_quantise("quantise", q, scale, x, block);
  for_each_block(threads_, q, x, block,
                 [&](auto narrow, auto wide, std::int64_t first, std::int64_t end, std::int64_t b) {
                   using Q = decltype(narrow);
                   const auto* from = x.as<decltype(wide)>();
                   float most = 0;
                   bool finite = true;
                   for (std::int64_t i = first; i < end; ++i) {
                     const float size = std::fabs(to_float(from[i]));
                     finite = finite && std::isfinite(size);
                     most = std::max(most, size);
                   }
                   const float s = finite ? most / Narrow<Q>::largest : std::numeric_limits<float>::quiet_NaN();
                   scale.as<float>()[b] = s;
                   for (std::int64_t i = first; i < end; ++i) {
                     q.as<Q>()[i] = Narrow<Q>::of(s > 0 ? to_float(from[i]) / s : 0.0f);
                   }
                 });
}

void CpuStream::dequantise(const Tensor& x, const Tensor& q, const Tensor& scale, std::int64_t block) {
  check_quantise("dequantise", q, scale, x, block);
  for_each_block(threads_, q, x, block,
                 [&](auto narrow, auto wide, std::int64_t first, std::int64_t end, std::int64_t b) {
                   const float s = scale.as<float>()[b];
                   for (std::int64_t i = first; i < end; ++i) {
                     x.as<decltype(wide)>()[i] = from_float<decltype(wide)>(widened(q.as<decltype(narrow)>()[i]) * s);
                   }
                 });
}

}  // namespace orthant
