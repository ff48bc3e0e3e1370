// Causal attention of whole sequences: cuDNN where it was built in and goes, else kernels of our own.
#include "core/device/attention_check.h"
#include "core/device/cuda/attention_choice.h"
#include "core/device/cuda/attention_mma.h"
#include "core/device/cuda/attention_plain.h"
#include "core/device/cuda/cuda_stream.h"

#if defined(ORTHANT_CUDNN)
#include "core/device/cuda/attention_cudnn.h"
#endif

namespace orthant::cuda {
#if defined(ORTHANT_CUDNN)
namespace {

// Null where cuDNN is not to be asked.
CudnnAttention* cudnn_for(CudaStream& stream, std::shared_ptr<CudnnAttention>& of_stream, const Tensor& q,
                          const Tensor& first, const AttentionShape& shape) {
  if (!cudnn_attention_fits(q.dtype(), first.defined(), shape, stream.cuda().architecture())) {
    return nullptr;
  }
  if (of_stream == nullptr) {
    of_stream = std::make_shared<CudnnAttention>(stream);
  }
  return of_stream.get();
}

}  // namespace
#endif

void CudaStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& first, const AttentionShape& shape) {
  require(shape.softcap == 0, "attention: this device cuts no scores off");
  check_attention("attention", o, lse, q, k, v, first, shape);
#if defined(ORTHANT_CUDNN)
  CudnnAttention* const cudnn = cudnn_for(*this, cudnn_attention_, q, first, shape);
  if (cudnn != nullptr && cudnn->forward(o, lse, q, k, v, shape)) {
    return;
  }
#endif
  const SeenKeys seen{{}, {}, first};
  if (!mma_attention(*this, o, lse, q, k, v, seen, shape)) {
    plain_attention(*this, o, lse, q, k, v, seen, shape);
  }
}

void CudaStream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                    const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  check_attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, first, shape);
#if defined(ORTHANT_CUDNN)
  CudnnAttention* const cudnn = cudnn_for(*this, cudnn_attention_, q, first, shape);
  if (cudnn != nullptr && cudnn->backward(dq, dk, dv, d_o, q, k, v, o, lse, shape)) {
    return;
  }
#endif
  const SeenKeys seen{{}, {}, first};
  if (!mma_attention_backward(*this, dq, dk, dv, d_o, q, k, v, o, lse, seen, shape, false)) {
    plain_attention_backward(*this, dq, dk, dv, d_o, q, k, v, o, lse, seen, shape, false);
  }
}

}  // namespace orthant::cuda
