// Argument checks of Stream::gemm, shared by all devices.
#pragma once

#include <orthant/ops.h>

#include "core/base/check.h"

namespace orthant {

// c [m, n] = op(a) [m, k] op(b) [k, n].
struct GemmShape {
  std::int64_t m, n, k;
};

inline GemmShape check_gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) {
  require_float("gemm", "a", a);
  require_dtype("gemm", "b", b, {a.dtype()});
  require_float("gemm", "c", c);
  require_rank("gemm", "a", a, 2);
  require_rank("gemm", "b", b, 2);
  require_rank("gemm", "c", c, 2);
  const std::int64_t m = a.dim(how.transpose_a ? 1 : 0), k = a.dim(how.transpose_a ? 0 : 1);
  const std::int64_t n = b.dim(how.transpose_b ? 0 : 1), b_depth = b.dim(how.transpose_b ? 1 : 0);
  require(k == b_depth, "gemm: op(a) has {} columns and op(b) {} rows (a {}{}, b {}{})", k, b_depth, a.shape(),
          how.transpose_a ? " transposed" : "", b.shape(), how.transpose_b ? " transposed" : "");
  require_shape("gemm", "c", c, {m, n});
  require(how.beta == 0.0f || how.beta == 1.0f, "gemm: beta must be 0 or 1, got {}", how.beta);
  return {m, n, k};
}

}  // namespace orthant
