#include "core/device/cpu/late.h"

#include <chrono>
#include <thread>

#include "core/device/cpu/side_stream.h"

namespace orthant {
namespace {

// A moment counts from when an operation was asked for: those that are asked for together are late together.
class LateStream final : public SideStream {
 public:
  using SideStream::SideStream;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override {
    const auto due = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    SideStream::forward(name, tensors, [due, operation = std::move(operation)](Stream& inner) {
      std::this_thread::sleep_until(due);
      operation(inner);
    });
  }
};

}  // namespace

std::unique_ptr<Stream> LateDevice::make_main_stream() {
  std::unique_ptr<Stream> at_once = CpuDevice::make_main_stream();
  if (late_ == Late::main_streams) {
    return std::make_unique<LateStream>(std::move(at_once));
  }
  return std::make_unique<SideStream>(std::move(at_once));
}

std::unique_ptr<Stream> LateDevice::make_side_stream() {
  std::unique_ptr<Stream> at_once = CpuDevice::make_main_stream();
  if (late_ == Late::side_streams) {
    return std::make_unique<LateStream>(std::move(at_once));
  }
  return std::make_unique<SideStream>(std::move(at_once));
}

std::unique_ptr<Device> make_late_device(Late late, int threads) {
  return std::make_unique<LateDevice>(late, threads);
}

}  // namespace orthant
