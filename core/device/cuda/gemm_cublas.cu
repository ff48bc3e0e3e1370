#include "core/device/cuda/gemm_cublas.h"

#include <orthant/error.h>

namespace orthant::cuda {
namespace {

// What NVIDIA advises for Hopper; more than older GPUs want.
constexpr std::int64_t workspace_bytes = 32 << 20;

void check_cublas(cublasStatus_t status, const char* what) {
  require(status == CUBLAS_STATUS_SUCCESS, "gemm: cuBLAS: {}: {} ({})", what, cublasGetStatusName(status),
          cublasGetStatusString(status));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

}  // namespace

Cublas::Cublas(Device& device, cudaStream_t stream) : workspace_(device.empty(DType::u8, {workspace_bytes})) {
  check_cublas(cublasCreate(&handle_), "making a handle");
  check_cublas(cublasSetStream(handle_, stream), "setting the stream");  // before the workspace: it resets that
  check_cublas(cublasSetWorkspace(handle_, workspace_.data(), static_cast<std::size_t>(workspace_bytes)),
               "setting the working memory");
  // The default mode keeps fp32 products in fp32; with the flag, parts of a bf16 product are added in fp32 too.
  check_cublas(cublasSetMathMode(handle_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                                    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
               "setting the mode");
}

Cublas::~Cublas() {
  cublasDestroy(handle_);
}

void Cublas::gemm(const GemmProblem& p) {
  // cuBLAS stores by columns: a row-major matrix is its transpose there, and c' = b' a'.
  const float alpha = 1, beta = p.beta;
  const auto transposed = [](bool t) { return t ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const cublasStatus_t status =
      cublasGemmEx_64(handle_, transposed(p.transpose_b), transposed(p.transpose_a), p.n, p.m, p.k, &alpha, p.b,
                      type_of(p.in), p.transpose_b ? p.k : p.n, p.a, type_of(p.in), p.transpose_a ? p.m : p.k, &beta,
                      p.c, type_of(p.out), p.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  require(status == CUBLAS_STATUS_SUCCESS, "gemm: cuBLAS: a product with m {}, n {}, k {}: {} ({})", p.m, p.n, p.k,
          cublasGetStatusName(status), cublasGetStatusString(status));
}

}  // namespace orthant::cuda
