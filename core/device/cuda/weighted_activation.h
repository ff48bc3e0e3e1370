// The part of weighted_activation_backward that a caller shares who has made dweight zero himself.
#pragma once

#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {

// As Stream::weighted_activation_backward (ops.h). REQUIRES: its checks have passed; dweight is 0 where `source` is
// defined.
void weighted_activation(const CudaStream& stream, const Tensor& dh, const Tensor& a, const Tensor& dweight,
                         const Tensor& da, const Tensor& h, const Tensor& weight, const Tensor& source,
                         Activation kind);

}  // namespace orthant::cuda
