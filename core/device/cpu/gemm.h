// fp32 matrix products on raw pointers: oneDNN where the build has it, gemm_plain.h elsewhere.
//
// A row of x W^T (ta false, tb true, beta 0: what a layer's forward pass computes) has the same bits whatever other
// rows are there, so that a token's numbers are the same in training, alone and in any batch.
#pragma once

#include <cstdint>

namespace orthant {

// C [m, n] = op(A) op(B) + beta * C, row-major with leading dimensions (elements between rows as stored); op(A) is
// [m, k], op(B) [k, n]; ta and tb say that A and B are stored transposed. beta 0 never reads C. Zero sizes are
// allowed (k = 0: C = beta * C). Uses as many threads as OpenMP allows the calling thread (see ThreadLimit), one
// inside a parallel region.
void cpu_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
              const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);

// Makes what the first product would make. oneDNN writes code then, and crashes where it gets no memory for that: it
// shall do so before training fills the memory.
void prepare_cpu_gemm();

}  // namespace orthant
