// The CPU, but its main stream runs its operations later, as a GPU's does: what another stream or the host touches
// without waiting is not there yet.
#include <orthant/module.h>

#include <chrono>
#include <thread>

#include "core/device/cpu/cpu_device.h"
#include "core/device/cpu/side_stream.h"

namespace {

using namespace orthant;

class LateStream final : public SideStream {
 public:
  using SideStream::SideStream;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override {
    SideStream::forward(name, tensors, [operation = std::move(operation)](Stream& inner) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      operation(inner);
    });
  }
};

class LateDevice final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;

  std::string_view name() const override { return "late"; }
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> make_main_stream() override {
    return std::make_unique<LateStream>(CpuDevice::make_main_stream());
  }
  std::unique_ptr<Stream> make_side_stream() override {
    return std::make_unique<SideStream>(CpuDevice::make_main_stream());
  }
};

}  // namespace

ORTHANT_DEVICE(
    "late", [](const DeviceConfig& config) { return std::make_unique<LateDevice>(config.threads); }, [] {})
