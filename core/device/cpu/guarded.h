// The guarded device: the CPU's operations on memory that is unreadable except to an operation, or while a HostView
// uses it. Code that reaches through Tensor::data() by itself dies with SIGSEGV, here and now, instead of on a GPU.
//
// Each allocation is mapped twice. Tensor::data() is in the first mapping, which only a HostView opens. Operations are
// given tensors of the second, which is always open and which nobody else knows of: nothing has to be opened and closed
// around each of them. In both, an allocation has pages of its own, its end at the end of a page with a page that is
// never readable behind it, so that an operation that runs past the end of a tensor dies as well.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "core/device/forwarding_stream.h"

namespace orthant {

class GuardedDevice : public Device {
 public:
  explicit GuardedDevice(int threads);

  std::string_view name() const override { return "guarded"; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<Stream> make_host_stream() override;
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;

  ~GuardedDevice() override;

  // The tensor as operations are given it. Errors: Error where it is of another device.
  Tensor seen(const Tensor& tensor);
  // Makes a tensor's allocation readable and writable at Tensor::data() until the last matching close.
  void open(const Tensor& tensor);
  void close(const Tensor& tensor) noexcept;

 protected:
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  // As unreadable as the device's.
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* data, std::size_t bytes) noexcept override { release(data, bytes); }

 private:
  struct Pages {
    std::byte* begin = nullptr;  // of the first mapping
    std::size_t bytes = 0;       // of each mapping; a guard page follows
    int users = 0;
  };

  std::byte* map_twice(std::size_t bytes);

  int threads_;
  int file_;  // the memory, without a name
  std::size_t file_bytes_ = 0;
  std::mutex mutex_;
  std::map<const void*, Pages> pages_;                     // by Storage::data()
  std::map<std::size_t, std::vector<std::byte*>> unused_;  // mappings of small allocations that were released, by bytes
};

// Runs each operation at once on an inner stream, on its tensors as operations see them.
class GuardedStream : public ForwardingStream {
 public:
  // computes_on: whose memory the operations take, but for upload and download, which take both.
  GuardedStream(GuardedDevice& device, std::unique_ptr<Stream> inner, Memory computes_on = Memory::device)
      : device_(device), inner_(std::move(inner)), computes_on_(computes_on) {}

  Device& device() const override { return device_; }
  std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(const std::shared_ptr<Event>& event) override { inner_->wait(event); }
  void host(std::function<void()> work) override { inner_->host(std::move(work)); }
  void synchronize() override { inner_->synchronize(); }
  void apply(const OwnOperation& operation) override;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;
  Tensor seen(const Tensor& t) const override { return t.defined() ? device_.seen(t) : t; }

 private:
  GuardedDevice& device_;
  std::unique_ptr<Stream> inner_;
  Memory computes_on_;
};

}  // namespace orthant
