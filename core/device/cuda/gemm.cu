// gemm: cuBLAS, and our own kernel where it does not go.
#include <bit>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/gemm_plain.h"
#include "core/device/gemm_check.h"

#if !defined(ORTHANT_SIMT)
#include "core/device/cuda/gemm_cublas.h"
#endif

namespace orthant::cuda {

void CudaStream::gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) {
  const GemmShape shape = check_gemm(c, a, b, how);
  const GemmProblem p{.m = shape.m,
                      .n = shape.n,
                      .k = shape.k,
                      .transpose_a = how.transpose_a,
                      .transpose_b = how.transpose_b,
                      .beta = how.beta,
                      .a = a.data(),
                      .b = b.data(),
                      .c = c.data(),
                      .in = a.dtype(),
                      .out = c.dtype()};
#if !defined(ORTHANT_SIMT)
  if (cublas_takes(p)) {
    if (cublas_ == nullptr) {
      cublas_ = std::make_shared<Cublas>(device_, stream_.handle());
    }
    stream_.give(
        "gemm", [cublas = cublas_, p](cudaStream_t) { cublas->gemm(p); }, {}, p.m, p.n, p.k, p.transpose_a,
        p.transpose_b, std::bit_cast<std::uint32_t>(p.beta), p.a, p.b, p.c, p.in, p.out);
    return;
  }
#endif
  gemm_plain(p, stream_);
}

}  // namespace orthant::cuda
