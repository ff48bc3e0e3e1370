// Attention of bf16 on the matrix units of Ampere and later: what cuDNN does not take of it, documents, windows and the
// blocks of a ring among it. FlashAttention-2's scheme (Dao, 2023): a block keeps a tile of rows, meets the others one
// tile after another, and all sums stay in the registers of one warp, in fp32, in a fixed order. The backward is one
// kernel for dq and one for dk and dv, so that nothing is summed by two blocks: the same bits each time.
//
// The arguments are plain_attention's, with q of bf16. They give false, having enqueued nothing, where the heads do not
// fit (mma_attention_fits) or a tensor is not aligned to 16 bytes: the caller takes the plain tiles.
//
// Floor, for heads of c channels and `pairs` of a query and a key that it sees, each query head by itself: 4 c
// operations a pair forward, 10 c backward. These kernels do 14 c backward, the scores and their gradients twice, and
// 18 c above 128 channels. Bytes: q, k, v and o once forward; those, d_o, dq, dk and dv once backward.
#pragma once

#include "core/device/cuda/attention_plain.h"

namespace orthant::cuda {

bool mma_attention(CudaStream& stream, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                   const Tensor& v, const SeenKeys& seen, const AttentionShape& shape);
bool mma_attention_backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                            const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                            const SeenKeys& seen, const AttentionShape& shape, bool add);

}  // namespace orthant::cuda
