// The experts' products in bf16 on the matrix units: rows may be gathered on the way in, and the activation, or its
// backward, is applied on the way out.
#pragma once

#include <cuda_runtime.h>

#include <orthant/operation_kinds.h>
#include <orthant/tensor.h>

#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

class CudaStream;

// Which rows of memory an operand's packed rows are: source[r] / top_k, or zeros where source is -1. Null: row r.
struct Gather {
  const std::int32_t* source = nullptr;
  std::int32_t top_k = 1;
};

// What becomes of da = dy w_out: weighted_activation_backward of it. h, dh [R, n], act [R, f]; weight f32 [T, K];
// partial f32 [R, parts]: of each row <da, act(h)>, by parts of the columns.
struct WeightedBackward {
  const void* h;
  void *dh, *act;
  const float* weight;
  const std::int32_t* source;
  float* partial;
};

// REQUIRES of all: matrix_units_take(p, bf16). In stream order; nothing waits for the device.
struct ExpertEngine {
  // c = a b, or c += a b, as grouped_gemm and grouped_gemm_tn. gather_a: of a's rows; gather_b: of b's, tn only, and
  // not both.
  void (*multiply)(const CudaStream& stream, const GroupedProblem& p, DType out, Gather gather_a, Gather gather_b);
  // h = x w_in^T, p being nt with c = h [R, n]; and act = act(h), as h was rounded, [R, f].
  void (*activate)(const CudaStream& stream, const GroupedProblem& p, Gather gather, void* act, Activation kind);
  // p is nn with n = f and c unused.
  void (*weigh)(const CudaStream& stream, const GroupedProblem& p, Gather gather, const WeightedBackward& out,
                Activation kind);
  // Columns of a part of WeightedBackward::partial; the last may have fewer.
  std::int64_t part_columns;
};

extern const ExpertEngine mma_engine;  // Ampere and later (mma_tile.h)

}  // namespace orthant::cuda
