// The products of an expert FFN, as problems: what its paths (expert_ffn.cu, packed_ffn.cu) have in common.
#pragma once

#include <orthant/error.h>
#include <orthant/ops.h>

#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// Undefined tensors have null addresses. rows: of the packed operands.
inline GroupedProblem ffn_product(GroupedLayout layout, const Tensor& a, const Tensor& b, const Tensor& c,
                                  const Dispatch& to, std::int64_t rows, float beta = 0) {
  const std::int64_t experts = to.offset.elements() - 1;
  const bool tn = layout == GroupedLayout::tn;
  return {.layout = layout,
          .experts = experts,
          .rows = rows,
          .m = tn ? a.dim(1) : 0,
          .n = tn ? b.dim(1) : b.dim(layout == GroupedLayout::nt ? 1 : 2),
          .k = tn ? 0 : a.dim(1),
          .beta = beta,
          .a = a.data(),
          .b = b.data(),
          .c = c.data(),
          .offset = to.offset.as<std::int32_t>()};
}

// Of weights b, before there is memory for what the operation makes itself: that is aligned, as all that is allocated.
inline GroupedProblem planned_product(GroupedLayout layout, const void* a, const Tensor& b, const Dispatch& to,
                                      std::int64_t rows) {
  const bool nt = layout == GroupedLayout::nt;
  return {.layout = layout,
          .experts = to.offset.elements() - 1,
          .rows = rows,
          .n = b.dim(nt ? 1 : 2),
          .k = b.dim(nt ? 2 : 1),
          .a = a,
          .b = b.data()};
}

// Of gradients dw [E, m, n].
inline GroupedProblem planned_gradient(const Tensor& dw, const Dispatch& to, std::int64_t rows) {
  return {.layout = GroupedLayout::tn,
          .experts = to.offset.elements() - 1,
          .rows = rows,
          .m = dw.dim(1),
          .n = dw.dim(2),
          .c = dw.data()};
}

}  // namespace orthant::cuda
