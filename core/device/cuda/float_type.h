// From a tensor's dtype to the type of its elements in a kernel.
#pragma once

#include <orthant/tensor.h>

#include "core/device/cuda/device_math.h"

namespace orthant::cuda {

// Calls fn(float{}) or fn(bf16{}). REQUIRES: dtype is f32 or bf16.
template <class F>
void with_float_type(DType dtype, F&& fn) {
  if (dtype == DType::bf16) {
    fn(bf16{});
  } else {
    fn(float{});
  }
}

}  // namespace orthant::cuda
