#include "core/cuda/usable.h"

#include <cstdlib>

#include "core/cuda/launch.h"

namespace orthant::cuda {

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
    fail("device \"{}\": there is no GPU here{}. `nvidia-smi` lists what the driver sees", device, left);
  }
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (status == cudaErrorInsufficientDriver && driver == 0) {
    fail(
        "device \"{}\": there is no NVIDIA driver here (libcuda.so.1). Where `nvidia-smi` works, LD_LIBRARY_PATH lacks "
        "the driver's folder",
        device);
  }
  if (status == cudaErrorInsufficientDriver) {
    fail(
        "device \"{}\": the NVIDIA driver serves CUDA {}.{}, and this was built with {}.{}: update the driver, or "
        "build with an older toolkit",
        device, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  fail("device \"{}\": the GPUs cannot be used: {} ({}){}", device, cudaGetErrorName(status),
       cudaGetErrorString(status), left);
}

}  // namespace orthant::cuda
