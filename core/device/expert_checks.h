// Argument checks of grouped_gemm and grouped_gemm_tn, shared by all devices. What the offsets hold is not looked at.
#pragma once

#include <orthant/ops.h>

#include "core/base/check.h"

namespace orthant {

// As in ops.h; m of grouped_gemm_tn, k of grouped_gemm only.
struct GroupedShape {
  std::int64_t experts = 0, rows = 0, m = 0, n = 0, k = 0;
};

GroupedShape check_grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how);
GroupedShape check_grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, float beta);

}  // namespace orthant
