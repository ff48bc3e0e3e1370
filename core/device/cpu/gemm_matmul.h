// Matrix products by oneDNN's matmul primitive.
//
// Its kernels for AVX-512 sum an element of C over k in an order that does not depend on how many rows there are, nor
// on the number of threads; its sgemm, and its code for older processors, promise nothing of the kind. tests/ops asks
// (Gemm.RowsDoNotDependOnEachOther), and `orthant generate --verify` on the machine at hand.
#pragma once

#include <orthant/tensor.h>

#include <cstdint>

namespace orthant {

// Whether matmul_gemm may be called for fp32 A and B: oneDNN is there, and rows do not depend on each other.
bool have_matmul_of_rows();
// The same for bf16 and sums of k steps: the processor multiplies bf16 (AVX-512 BF16, AMX).
bool have_bf16_matmul(std::int64_t k);

// As cpu_gemm, with A and B of `dtype`, f32 or bf16, and C f32 or bf16 (sums in fp32, rounded once); beta is 0 or 1; no
// size is zero.
void matmul_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a,
                 std::int64_t lda, const void* b, std::int64_t ldb, float beta, void* c, DType c_dtype,
                 std::int64_t ldc);

}  // namespace orthant
