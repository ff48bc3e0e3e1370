// What core/modules/make_device.cpp looks for in a device library. Its note: library_note.cpp.
#include <cstdlib>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/usable.h"
#include "experts/cuda/choose_kernels.h"

#ifndef ORTHANT_DEVICE_NAME
#define ORTHANT_DEVICE_NAME "cuda"
#endif

extern "C" __attribute__((visibility("default"))) void orthant_device_check() {
  orthant::cuda::usable_gpus(ORTHANT_DEVICE_NAME);
  static_cast<void>(orthant::cuda::expert_setting(std::getenv("ORTHANT_CUDA_EXPERTS")));
}

extern "C" __attribute__((visibility("default"))) orthant::Device* orthant_device_create(int /*threads*/) {
  return new orthant::cuda::CudaDevice(ORTHANT_DEVICE_NAME);
}
