#include "apps/lm/turned_weights.h"

#include <algorithm>
#include <cstdint>

#include <orthant/device.h>

namespace orthant {
namespace {

// to [k, n] <- from [n, k], by squares that stay in cache.
template <class T>
void turn(T* to, const T* from, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t square = 32;
  for (std::int64_t i0 = 0; i0 < n; i0 += square) {
    for (std::int64_t j0 = 0; j0 < k; j0 += square) {
      for (std::int64_t j = j0; j < std::min(j0 + square, k); ++j) {
        for (std::int64_t i = i0; i < std::min(i0 + square, n); ++i) {
          to[j * n + i] = from[i * k + j];
        }
      }
    }
  }
}

void turn(const Tensor& to, const Tensor& from) {
  const std::int64_t n = from.dim(1), k = from.dim(2);
  const std::size_t bytes = size_of(from.dtype());
  require(bytes == 2 || bytes == 4, "weights of {} bytes an element are not turned", bytes);
#pragma omp parallel for
  for (std::int64_t e = 0; e < from.dim(0); ++e) {
    if (bytes == 4) {
      turn(static_cast<std::uint32_t*>(to.data()) + e * n * k,
           static_cast<const std::uint32_t*>(from.data()) + e * n * k, n, k);
    } else {
      turn(static_cast<std::uint16_t*>(to.data()) + e * n * k,
           static_cast<const std::uint16_t*>(from.data()) + e * n * k, n, k);
    }
  }
}

}  // namespace

void TurnedWeights::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  if (!how.transpose_b) {
    inner_->grouped_gemm(c, a, b, offset, how);
    return;
  }
  Tensor& turned = turned_[b.data()];
  const std::int64_t experts = b.dim(0), n = b.dim(1), k = b.dim(2);
  if (!turned.defined()) {
    turned = device().empty(b.dtype(), {experts, k, n});
    turn(turned, b);
  }
  how.transpose_b = false;
  inner_->grouped_gemm(c, a, turned, offset, how);
}

}  // namespace orthant
