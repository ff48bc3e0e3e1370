// cuBLAS for one stream: its handle and its working memory, so that what runs on other streams changes no bit and a
// CUDA graph may record it.
#pragma once

#include <cublas_v2.h>

#include <orthant/device.h>

#include "core/device/cuda/gemm_plain.h"

namespace orthant::cuda {

// It has no fp32 inputs with a bf16 result, and an empty sum is not worth asking for.
inline bool cublas_takes(const GemmProblem& p) {
  return p.m > 0 && p.n > 0 && p.k > 0 && (p.in == DType::bf16 || p.out == DType::f32);
}

class Cublas {
 public:
  // Errors: Error with cuBLAS's status, here and below.
  Cublas(Device& device, cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // fp32 products are fp32 throughout (no TF32); of bf16 ones all sums are fp32. REQUIRES: cublas_takes(p).
  void gemm(const GemmProblem& p);

 private:
  cublasHandle_t handle_ = nullptr;
  Tensor workspace_;
};

}  // namespace orthant::cuda
