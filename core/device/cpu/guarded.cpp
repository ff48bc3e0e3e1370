#include "core/device/cpu/guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/side_stream.h"

namespace orthant {
namespace {

std::size_t page_size() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Tensors kept open for a scope.
class Opened {
 public:
  Opened(GuardedDevice& device, std::initializer_list<Tensor> tensors) : Opened(device) {
    tensors_.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      device_.open(tensor);
      tensors_.push_back(tensor);
    }
  }
  ~Opened() {
    for (const Tensor& tensor : tensors_) {
      device_.close(tensor);
    }
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  explicit Opened(GuardedDevice& device) : device_(device) {}  // complete: what is open is closed if a later open fails

  GuardedDevice& device_;
  std::vector<Tensor> tensors_;
};

class GuardedView : public HostView {
 public:
  GuardedView(GuardedDevice& device, const Tensor& tensor)
      : HostView(tensor.as<std::byte>(), tensor.bytes()), opened_(device, {tensor}) {}

 private:
  Opened opened_;
};

}  // namespace

GuardedDevice::GuardedDevice(int threads) : threads_(threads) {
  require(threads >= 1, "the guarded device needs at least one thread, got {}", threads);
}

std::unique_ptr<Stream> GuardedDevice::make_main_stream() {
  return std::make_unique<GuardedStream>(*this, std::make_unique<CpuStream>(*this, threads_));
}

std::unique_ptr<Stream> GuardedDevice::make_side_stream() {
  return std::make_unique<SideStream>(make_main_stream());
}

std::unique_ptr<HostView> GuardedDevice::host_view(const Tensor& tensor, Access) {
  require_defined("host_view", "tensor", tensor);
  return std::make_unique<GuardedView>(*this, tensor);
}

void* GuardedDevice::allocate(std::size_t bytes, MemoryCount& count) {
  const std::size_t page = page_size();
  const std::size_t data_bytes = std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
  Pages pages;
  pages.bytes = (data_bytes + page - 1) / page * page;
  pages.begin = mmap(nullptr, pages.bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::lock_guard lock(mutex_);
  require(pages.begin != MAP_FAILED, "out of host memory: a tensor of {} bytes was asked for, {} bytes are in use",
          bytes, count.use().current_bytes);
  void* data = static_cast<std::byte*>(pages.begin) + (pages.bytes - data_bytes);
  pages_.emplace(data, pages);
  count.add(bytes);
  return data;
}

void GuardedDevice::release(void* data, std::size_t bytes, MemoryCount& count) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = pages_.find(data);
  munmap(found->second.begin, found->second.bytes + page_size());
  pages_.erase(found);
  count.remove(bytes);
}

void GuardedDevice::open(const Tensor& tensor) {
  if (!tensor.defined()) {
    return;
  }
  std::lock_guard lock(mutex_);
  const auto found = pages_.find(tensor.storage()->data());
  require(found != pages_.end(), "a tensor of device \"{}\" was given to an operation of device \"guarded\"",
          tensor.device().name());
  if (found->second.users++ == 0) {
    require(mprotect(found->second.begin, found->second.bytes, PROT_READ | PROT_WRITE) == 0,
            "the guarded device cannot make {} bytes readable", found->second.bytes);
  }
}

void GuardedDevice::close(const Tensor& tensor) noexcept {
  if (!tensor.defined()) {
    return;
  }
  std::lock_guard lock(mutex_);
  const auto found = pages_.find(tensor.storage()->data());
  if (found != pages_.end() && --found->second.users == 0) {
    mprotect(found->second.begin, found->second.bytes, PROT_NONE);
  }
}

void GuardedStream::forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) {
  const std::string_view called = name;
  for (const Tensor& tensor : tensors) {
    require(!tensor.on_host() || called == "upload" || called == "download",
            "{} was given a tensor of the host's memory: only upload, download and HostView take it", called);
  }
  Opened opened(device_, tensors);
  operation(*inner_);
}

std::unique_ptr<Device> make_guarded_device(int threads) {
  return std::make_unique<GuardedDevice>(threads);
}

}  // namespace orthant
