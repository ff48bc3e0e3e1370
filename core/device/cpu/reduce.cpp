// sum, sum_squares and reduce_matrix: fp64 sums over blocks of fixed size, or of whole rows and columns, so that the
// bits do not depend on the thread count.
#include <algorithm>
#include <cmath>
#include <limits>
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

namespace {

double plain(double v) {
  return v;
}

// NaN where either is.
double larger(double a, double b) {
  return a > b || std::isnan(a) ? a : b;
}

double largest(const float* x, std::int64_t n) {
  double found = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < n; ++i) {
    found = larger(found, static_cast<double>(x[i]));
  }
  return found;
}

// Each column from the first row to the last.
template <class Join>
void reduce_columns(int threads, double* to, const float* x, std::int64_t rows, std::int64_t columns, Join&& join) {
  parallel_for(threads, columns, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = x + row * columns;
#pragma omp simd
      for (std::int64_t column = begin; column < end; ++column) {
        to[column] = join(to[column], static_cast<double>(from[column]));
      }
    }
  });
}

}  // namespace

void CpuStream::reduce_matrix(const Tensor& rows, const Tensor& columns, const Tensor& all, const Tensor& x,
                              ReduceOp how) {
  check_reduce_matrix(rows, columns, all, x, how);
  const auto* from = x.as<float>();
  const std::int64_t r = x.dim(0), c = x.dim(1);
  const bool adds = how == ReduceOp::sum;
  if (rows.defined()) {
    auto* to = rows.as<double>();
    parallel_for(threads_, r, std::max<std::int64_t>(16384 / std::max<std::int64_t>(c, 1), 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const float* of = from + row * c;
                     to[row] = adds ? to[row] + lane_sum(of, 0, c, plain) : larger(to[row], largest(of, c));
                   }
                 });
  }
  if (columns.defined()) {
    auto* to = columns.as<double>();
    adds ? reduce_columns(threads_, to, from, r, c, [](double a, double b) { return a + b; })
         : reduce_columns(threads_, to, from, r, c, larger);
  }
  if (all.defined() && adds) {
    add_sum(threads_, all, x, plain);
  } else if (all.defined()) {
    auto* to = all.as<double>();
    *to = larger(*to, largest(from, x.elements()));
  }
}

}  // namespace orthant
