// The matrix product by our own kernel: where cuBLAS is not (tests/simt) or does not go, and as its oracle.
#pragma once

#include <cuda_runtime.h>

#include <orthant/tensor.h>

#include <cstdint>

#include "core/device/cuda/recorder.h"

namespace orthant::cuda {

// c [m, n] (+)= op(a) op(b), row-major: a [m, k] or [k, m] where transpose_a says, b [k, n] or [n, k]. All of them
// contiguous. f inputs of one dtype, c f32 or bf16.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;  // 0 or 1
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  DType in = DType::f32, out = DType::f32;
};

void gemm_plain(const GemmProblem& p, const StreamRef& stream);

}  // namespace orthant::cuda
