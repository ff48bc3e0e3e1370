// What core/modules/make_device.cpp looks for in a device library. It stands in the library's topmost room, which knows
// all the others. The library's note: core/device/cuda/library_note.cpp.
#include <cstdlib>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/usable.h"
#include "experts/cuda/choose_kernels.h"

#ifndef ORTHANT_DEVICE_NAME
#define ORTHANT_DEVICE_NAME "cuda"
#endif

namespace {

std::string expert_kernels() {
  const char* text = std::getenv("ORTHANT_CUDA_EXPERTS");
  return text == nullptr ? "" : text;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void orthant_device_check() {
  orthant::cuda::usable_gpus(ORTHANT_DEVICE_NAME);
  static_cast<void>(orthant::cuda::expert_setting(expert_kernels()));
}

extern "C" __attribute__((visibility("default"))) orthant::Device* orthant_device_create(int /*threads*/) {
  const std::string experts = expert_kernels();
  static_cast<void>(orthant::cuda::expert_setting(experts));
  return new orthant::cuda::CudaDevice(ORTHANT_DEVICE_NAME, experts);
}
