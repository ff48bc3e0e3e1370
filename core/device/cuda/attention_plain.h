// Attention by kernels of ours, on the fp32 units, for any head_dim up to 256: where neither a library's nor the matrix
// units' (attention_mma.h) are taken, and their oracle.
// Tiles with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax"); the backward
// from the saved log-sum-exp (Dao et al., "FlashAttention"), once over the keys for dq, once over the queries for dk
// and dv, so that nothing is summed by two threads.
// All are enqueued on the stream; REQUIRES: arguments checked as ops.h says (core/device/attention_check.h).
#pragma once

#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {

// The tensors that say which keys a query sees; undefined: see attention_geometry.h.
struct SeenKeys {
  Tensor q_position, k_position, first;
};

// o [T_q, h c], of q's dtype or f32; lse f32 [batch, h, positions].
void plain_attention(CudaStream& stream, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                     const Tensor& v, const SeenKeys& seen, const AttentionShape& shape);
// dq [T_q, h c], dk and dv [T_k, kv c]: of q's dtype or f32; +=, if f32 and `add`.
void plain_attention_backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                              const Tensor& lse, const SeenKeys& seen, const AttentionShape& shape, bool add);
// For a backward: delta f32 [batch, h, positions] = the rows of d_o times those of o, f [T_q, h c] both.
void attention_delta(CudaStream& stream, float* delta, const Tensor& d_o, const Tensor& o, const AttentionShape& shape);

}  // namespace orthant::cuda
