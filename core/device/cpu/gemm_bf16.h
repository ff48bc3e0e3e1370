// bf16 matrix products on processors that have them (AVX-512 BF16, AMX), through oneDNN's matmul primitive.
#pragma once

#include <orthant/tensor.h>

#include <cstdint>

namespace orthant {

// Whether bf16_gemm may be called: oneDNN is there and the processor multiplies bf16.
bool have_bf16_gemm();

// As cpu_gemm, with bf16 A and B, and C f32 or bf16 (sums in fp32, rounded once); beta is 0 or 1; no size is zero.
void bf16_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const void* a, std::int64_t lda,
               const void* b, std::int64_t ldb, float beta, void* c, DType c_dtype, std::int64_t ldc);

}  // namespace orthant
