#include "core/device/cuda/usable.h"

#include <cstdlib>

#include "core/device/cuda/launch.h"

namespace orthant::cuda {
namespace {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

int usable_gpus(const std::string& device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) {
    return count;
  }
  static_cast<void>(cudaGetLastError());
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string left = visible == nullptr ? "" : fmt::format("; CUDA_VISIBLE_DEVICES is \"{}\"", visible);
  if (status == cudaSuccess || status == cudaErrorNoDevice) {
    refuse("device \"{}\": there is no GPU here{}. `nvidia-smi` lists what the driver sees", device, left);
  }
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (status == cudaErrorInsufficientDriver && driver == 0) {
    refuse(
        "device \"{}\": there is no NVIDIA driver here (libcuda.so.1). Where `nvidia-smi` works, LD_LIBRARY_PATH lacks "
        "the driver's folder",
        device);
  }
  if (status == cudaErrorInsufficientDriver) {
    refuse(
        "device \"{}\": the NVIDIA driver serves CUDA {}.{}, and this was built with {}.{}: update the driver, or "
        "build with an older toolkit",
        device, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  refuse("device \"{}\": the GPUs cannot be used: {} ({}){}", device, cudaGetErrorName(status),
         cudaGetErrorString(status), left);
}

}  // namespace orthant::cuda
