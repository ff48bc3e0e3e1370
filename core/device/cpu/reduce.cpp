// sum and sum_squares: fp64 sums over blocks of fixed size, so that the bits do not depend on the thread count.
#include <numeric>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

// Eight running sums, so that the loop vectorises without reordering within a lane.
template <class T, class F>
double lane_sum(const T* x, std::int64_t begin, std::int64_t end, F&& term) {
  constexpr std::int64_t lanes = 8;
  double lane[lanes] = {};
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
#pragma omp simd
    for (std::int64_t l = 0; l < lanes; ++l) {
      lane[l] += term(static_cast<double>(to_float(x[i + l])));
    }
  }
  double total = 0;
  for (; i < end; ++i) {
    total += term(static_cast<double>(to_float(x[i])));
  }
  for (const double l : lane) {
    total += l;
  }
  return total;
}

template <class F>
void add_sum(int threads, const Tensor& out, const Tensor& x, F&& term) {
  with_float_type(x.dtype(), [&](auto tx) {
    const auto* from = x.as<decltype(tx)>();
    *out.as<double>() += block_sum(
        threads, x.elements(), [&](std::int64_t begin, std::int64_t end) { return lane_sum(from, begin, end, term); });
  });
}

}  // namespace

void CpuStream::sum_squares(const Tensor& out, const Tensor& x) {
  check_sum_squares(out, x);
  add_sum(threads_, out, x, [](double v) { return v * v; });
}

void CpuStream::sum(const Tensor& out, const Tensor& x) {
  check_sum(out, x);
  if (x.dtype() == DType::f64) {  // a few sums of sums
    *out.as<double>() = std::accumulate(x.as<double>(), x.as<double>() + x.elements(), *out.as<double>());
    return;
  }
  add_sum(threads_, out, x, [](double v) { return v; });
}

}  // namespace orthant
