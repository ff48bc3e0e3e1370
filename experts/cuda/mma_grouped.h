// The experts' products in bf16 on the matrix units of Ampere and later (mma_tile.h): rows may be gathered on the way
// in, and the activation, or its backward, is applied on the way out.
#pragma once

#include <cuda_runtime.h>

#include <orthant/settings.h>
#include <orthant/tensor.h>

#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// Which rows of memory an operand's packed rows are: source[r] / top_k, or zeros where source is -1. Null: row r.
struct Gather {
  const std::int32_t* source = nullptr;
  std::int32_t top_k = 1;
};

// bf16 in and out, or fp32 out; addresses divisible by 16 bytes, sizes by 8.
bool mma_takes(const GroupedProblem& p, DType in);

// c = a b, or c += a b, as grouped_gemm and grouped_gemm_tn. gather_a: of a's rows; gather_b: of b's, tn only.
// REQUIRES: mma_takes(p). Nothing waits for the device.
void grouped_mma(const GroupedProblem& p, DType out, Gather gather_a, Gather gather_b, cudaStream_t stream);

// h = x w_in^T, p being nt with c = h [R, n]; and act = act(h), as h was rounded, [R, f].
void grouped_mma_activate(const GroupedProblem& p, Gather gather, void* act, Activation kind, cudaStream_t stream);

// With da = dy w_out, p being nn with n = f and c unused: what weighted_activation_backward makes of it. h, dh [R, n],
// act [R, f]; weight f32 [T, K]; partial f32 [R, mma_column_tiles(f)]: of each row <da, act(h)>, by parts of the
// columns.
struct WeightedBackward {
  const void* h;
  void *dh, *act;
  const float* weight;
  const std::int32_t* source;
  float* partial;
};
std::int64_t mma_column_tiles(std::int64_t columns);
void grouped_mma_weigh(const GroupedProblem& p, Gather gather, const WeightedBackward& out, Activation kind,
                       cudaStream_t stream);

// dweight [choices] = 0, and at source[r] the sum of row r's parts, in order.
void sum_partials(float* dweight, std::int64_t choices, const float* partial, const std::int32_t* source,
                  std::int64_t rows, std::int64_t parts, cudaStream_t stream);

}  // namespace orthant::cuda
