#include "core/device/expert_checks.h"

namespace orthant {
namespace {

bool is_float(const Tensor& t) {
  return t.defined() && (t.dtype() == DType::f32 || t.dtype() == DType::bf16);
}

}  // namespace

GroupedShape check_grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  require(is_float(a) && is_float(b) && is_float(c) && a.dtype() == b.dtype() && a.rank() == 2 && b.rank() == 3 &&
              c.rank() == 2 && !how.transpose_a && (how.beta == 0 || how.beta == 1),
          "grouped_gemm: wants c [R, n] = a [R, k] b [E, ...] of f32 or bf16, beta 0 or 1, got {} = {} {}", c.shape(),
          a.shape(), b.shape());
  const std::int64_t experts = b.dim(0), rows = a.dim(0), k = a.dim(1), n = b.dim(how.transpose_b ? 1 : 2);
  require(b.dim(how.transpose_b ? 2 : 1) == k && c.shape() == Shape({rows, n}),
          "grouped_gemm: shapes do not fit: {} = {} x {}{}", c.shape(), a.shape(), b.shape(),
          how.transpose_b ? " (transposed)" : "");
  require_tensor("grouped_gemm", "offset", offset, DType::i32, {experts + 1});
  return {experts, rows, 0, n, k};
}

GroupedShape check_grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset,
                                   float beta) {
  require(is_float(a) && is_float(b) && a.dtype() == b.dtype() && c.defined() && c.dtype() == DType::f32 &&
              a.rank() == 2 && b.rank() == 2 && c.rank() == 3 && (beta == 0 || beta == 1),
          "grouped_gemm_tn: wants f32 c [E, m, n] from a [R, m] and b [R, n] of f32 or bf16, beta 0 or 1, got {} from "
          "{} and {}",
          c.shape(), a.shape(), b.shape());
  const std::int64_t experts = c.dim(0), m = a.dim(1), n = b.dim(1);
  require(a.dim(0) == b.dim(0) && c.dim(1) == m && c.dim(2) == n,
          "grouped_gemm_tn: shapes do not fit: {} from {} and {}", c.shape(), a.shape(), b.shape());
  require_tensor("grouped_gemm_tn", "offset", offset, DType::i32, {experts + 1});
  return {experts, a.dim(0), m, n, 0};
}

}  // namespace orthant
