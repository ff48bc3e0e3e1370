// Causal attention of whole sequences by cuDNN's fused kernels, for one stream: its handle, and a plan for each shape,
// made when the shape is first met. The backward is cuDNN's deterministic one, or, where the device need not be
// deterministic, the one that adds in any order (backward_plans).
//
// REQUIRES of the calls: cudnn_attention_fits and the checks of ops.h. They give false, having enqueued nothing, where
// cuDNN has no plan for the shape on this GPU (said once on stderr) or a tensor is not aligned to 16 bytes: the caller
// takes another way. Errors: Error with cuDNN's status and words.
// Thread safety: as a Stream's.
#pragma once

#include <memory>

#include <orthant/ops.h>

namespace orthant::cuda {

class CudaStream;

class CudnnAttention {
 public:
  explicit CudnnAttention(CudaStream& stream);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  bool forward(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionShape& shape);
  bool backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o, const Tensor& q,
                const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse, const AttentionShape& shape);

 private:
  struct Plans;
  CudaStream& stream_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace orthant::cuda
