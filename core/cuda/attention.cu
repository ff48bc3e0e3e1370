// Causal attention of whole sequences.
#include "core/attention_check.h"
#include "core/cuda/attention_plain.h"
#include "core/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& first, const AttentionShape& shape) {
  check_attention("attention", o, lse, q, k, v, first, shape);
  plain_attention(*this, o, lse, q, k, v, {{}, {}, first}, shape);
}

void CudaStream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                    const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  check_attention("attention_backward", o, lse, q, k, v, first, shape);
  check_gradients("attention_backward", q.dtype(), dq, dk, dv, d_o, q, k, v);
  plain_attention_backward(*this, dq, dk, dv, d_o, q, k, v, o, lse, {{}, {}, first}, shape, false);
}

}  // namespace orthant::cuda
