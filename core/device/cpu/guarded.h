// The guarded device: the CPU's operations on memory that is unreadable except while an operation or a HostView uses
// it. Code that reaches through Tensor::data() by itself dies with SIGSEGV, here and now, instead of on a GPU.
//
// Each allocation has pages of its own, its end at the end of a page with a page that is never readable behind it,
// so that an operation that runs past the end of a tensor dies as well.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "core/base/memory_count.h"
#include "core/device/forwarding_stream.h"

namespace orthant {

class GuardedDevice : public Device {
 public:
  explicit GuardedDevice(int threads);

  std::string_view name() const override { return "guarded"; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;
  MemoryUse memory() const override { return count_.use(); }
  MemoryUse host_memory() const override { return host_count_.use(); }
  void reset_peak() override {
    count_.reset_peak();
    host_count_.reset_peak();
  }

  // Makes a tensor's allocation readable and writable until the last matching close. Undefined tensors are skipped.
  void open(const Tensor& tensor);
  void close(const Tensor& tensor) noexcept;

 protected:
  void* allocate(std::size_t bytes) override { return allocate(bytes, count_); }
  void release(void* data, std::size_t bytes) noexcept override { release(data, bytes, count_); }
  // As unreadable as the device's.
  void* allocate_host(std::size_t bytes) override { return allocate(bytes, host_count_); }
  void release_host(void* data, std::size_t bytes) noexcept override { release(data, bytes, host_count_); }

 private:
  void* allocate(std::size_t bytes, MemoryCount& count);
  void release(void* data, std::size_t bytes, MemoryCount& count) noexcept;

  struct Pages {
    void* begin = nullptr;
    std::size_t bytes = 0;  // readable ones; a guard page follows
    int users = 0;
  };

  int threads_;
  std::mutex mutex_;
  std::map<const void*, Pages> pages_;  // by Storage::data()
  MemoryCount count_, host_count_;
};

// Runs each operation at once on an inner stream, with its tensors open around it.
class GuardedStream : public ForwardingStream {
 public:
  GuardedStream(GuardedDevice& device, std::unique_ptr<Stream> inner) : device_(device), inner_(std::move(inner)) {}

  Device& device() const override { return device_; }
  std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(const std::shared_ptr<Event>& event) override { inner_->wait(event); }
  void host(std::function<void()> work) override { inner_->host(std::move(work)); }
  void synchronize() override { inner_->synchronize(); }

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  GuardedDevice& device_;
  std::unique_ptr<Stream> inner_;
};

}  // namespace orthant
