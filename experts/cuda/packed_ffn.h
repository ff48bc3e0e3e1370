// The routed experts of one rank by CUTLASS's products of packed rows: Stream::expert_ffn's operations, with one
// description for all products of a pass.
#pragma once

#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {

// Whether all products of a pass go to CUTLASS. dw_in, dw_out: undefined in the forward pass.
bool packed_ffn_fits(const CudaStream& stream, const Tensor& x, const Tensor& h, const Tensor& w_in,
                     const Tensor& w_out, const Tensor& dw_in, const Tensor& dw_out, const Dispatch& to);

// REQUIRES of both: packed_ffn_fits.
void packed_ffn(CudaStream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in,
                const Tensor& w_out, const Dispatch& to, Activation kind);
void packed_ffn_backward(CudaStream& stream, const Tensor& dx, const Tensor& dweight, const Tensor& dw_in,
                         const Tensor& dw_out, const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                         const Tensor& w_out, const Dispatch& to, Activation kind, float beta);

}  // namespace orthant::cuda
