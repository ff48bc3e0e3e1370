// A device that stands before another: its memory and its operations are the other's, its streams trace.
#pragma once

#include <memory>
#include <string>

#include "core/trace/trace.h"

namespace orthant {

class TracingDevice final : public Device {
 public:
  // `trace` outlives the device and what is made of it.
  TracingDevice(std::unique_ptr<Device> inner, Trace& trace);

  std::string_view name() const override { return inner_->name(); }
  bool asynchronous() const override { return inner_->asynchronous(); }
  bool holds_data() const override { return inner_->holds_data(); }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<Stream> make_host_stream() override;
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override {
    return inner_->host_view(tensor, access);
  }
  std::string kernels(DType compute) const override { return inner_->kernels(compute); }

 protected:
  void make_room() override { make_room_on(*inner_); }
  void* allocate(std::size_t bytes) override { return allocate_on(*inner_, bytes, Memory::device); }
  void release(void* data, std::size_t bytes) noexcept override { release_on(*inner_, data, bytes, Memory::device); }
  void* allocate_host(std::size_t bytes) override { return allocate_on(*inner_, bytes, Memory::host); }
  void release_host(void* data, std::size_t bytes) noexcept override { release_on(*inner_, data, bytes, Memory::host); }

 private:
  std::unique_ptr<Device> inner_;
  Trace& trace_;
  std::atomic<int> sides_ = 0;
};

}  // namespace orthant
