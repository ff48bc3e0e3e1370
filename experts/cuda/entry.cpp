// The module of the CUDA device. It stands in the library's topmost room, which knows all the others; and in a file
// that the host's compiler reads alone, because the module's note names that compiler.
#include <orthant/module.h>

#include <cstdlib>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/usable.h"
#include "core/modules/tree_note.h"
#include "experts/cuda/choose_kernels.h"

#ifndef ORTHANT_DEVICE_NAME
#define ORTHANT_DEVICE_NAME "cuda"
#endif

namespace orthant::cuda {
namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Errors: ConfigError where a variable says what nobody knows.
std::string expert_kernels() {
  const std::string kernels = variable("ORTHANT_CUDA_EXPERTS");
  static_cast<void>(expert_setting(kernels));
  static_cast<void>(tile_setting(variable("ORTHANT_CUDA_TILE")));
  return kernels;
}

void check_device() {
  usable_gpus(ORTHANT_DEVICE_NAME);
  static_cast<void>(expert_kernels());
}

std::unique_ptr<CudaDevice> make_device(const DeviceConfig& config) {
  return std::make_unique<CudaDevice>(ORTHANT_DEVICE_NAME, expert_kernels(), config.threads, config.deterministic);
}

}  // namespace
}  // namespace orthant::cuda

ORTHANT_TREE_NOTE
ORTHANT_DEVICE(ORTHANT_DEVICE_NAME, orthant::cuda::make_device, orthant::cuda::check_device)
