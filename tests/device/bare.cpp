// liborthant_device_bare.so: the device "bare", for tests. It is what docs/guides/devices.md asks of a new device and
// no more: memory that the host cannot read, work that is done later than it is asked for, and two operations.
// Everything else falls back to the host. The whole list of operations runs on it (tests/support/op_harness.h).
#include <orthant/fallback_stream.h>
#include <orthant/module.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "core/device/cpu/work_queue.h"

namespace orthant::bare {
namespace {

// The device's memory. An address of it is a place in pages that nobody can read; its bytes are elsewhere.
class Memory {
 public:
  void* allocate(std::size_t bytes) {
    void* const address = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(address != MAP_FAILED, "out of memory: a tensor of {} bytes was asked for", bytes);
    const std::lock_guard lock(mutex_);
    bytes_[static_cast<std::byte*>(address)].assign(bytes, std::byte{0xFF});
    return address;
  }
  void release(void* data, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    bytes_.erase(static_cast<std::byte*>(data));
    munmap(data, std::max<std::size_t>(bytes, 1));
  }
  std::byte* at(const Tensor& t) {
    const std::lock_guard lock(mutex_);
    auto* const storage = static_cast<std::byte*>(t.storage()->data());
    return bytes_.at(storage).data() + (t.as<std::byte>() - storage);
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::vector<std::byte>> bytes_;
};

class Done final : public Event {
 public:
  explicit Done(std::shared_future<void> done) : done_(std::move(done)) {}
  bool ready() const override { return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  void wait() override { done_.get(); }

 private:
  std::shared_future<void> done_;
};

// A copy on the host, written back when it goes. Of host_empty's memory the tensor itself.
class View final : public HostView {
 public:
  View(Memory& memory, const Tensor& t, Access access)
      : HostView(t.as<std::byte>(), t.bytes()),
        tensor_(t),
        device_(t.on_host() ? nullptr : memory.at(t)),
        access_(access) {
    if (device_ != nullptr) {
      copy_.resize(bytes_);
      data_ = copy_.data();
      if (access != Access::write) {
        std::copy_n(device_, bytes_, data_);
      }
    }
  }
  ~View() override {
    if (device_ != nullptr && access_ != Access::read) {
      std::copy_n(data_, bytes_, device_);
    }
  }

 private:
  Tensor tensor_;
  std::byte* device_;
  Access access_;
  std::vector<std::byte> copy_;
};

class BareStream final : public FallbackStream {
 public:
  BareStream(Device& on, Memory& memory, int threads) : FallbackStream(on, threads), memory_(memory) {}

  // Order.
  std::shared_ptr<Event> record() override {
    auto done = std::make_shared<std::promise<void>>();
    queue_.post_always([done](std::exception_ptr failure) {
      failure == nullptr ? done->set_value() : done->set_exception(std::move(failure));
    });
    return std::make_shared<Done>(done->get_future().share());
  }
  void host(std::function<void()> work) override {
    const auto due = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    queue_.post([due, work = std::move(work)] {
      std::this_thread::sleep_until(due);
      work();
    });
  }

  // Operations: what a device has of its own so far.
  void copy(const Tensor& to, const Tensor& from) override {
    require(to.dtype() == from.dtype() && to.elements() == from.elements(), "copy: to {} is not like from {}",
            to.shape(), from.shape());
    host([this, to, from] { std::memmove(memory_.at(to), memory_.at(from), to.bytes()); });
  }
  void scale(const Tensor& y, float a) override {
    if (y.dtype() != DType::f32) {
      return FallbackStream::scale(y, a);
    }
    host([this, y, a] {
      auto* const values = reinterpret_cast<float*>(memory_.at(y));
      std::transform(values, values + y.elements(), values, [a](float v) { return v * a; });
    });
  }

 private:
  Memory& memory_;
  WorkQueue queue_;  // last: what it runs needs the rest
};

class BareDevice final : public Device {
 public:
  explicit BareDevice(int threads) : threads_(threads), processor_(make_cpu_device(threads)) {}
  std::string_view name() const override { return "bare"; }
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> make_main_stream() override { return std::make_unique<BareStream>(*this, memory_, threads_); }
  std::unique_ptr<Stream> make_side_stream() override { return make_main_stream(); }
  std::unique_ptr<Stream> make_host_stream() override { return processor_->make_host_stream(); }
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override {
    return std::make_unique<View>(memory_, tensor, access);
  }
  std::string kernels(DType) const override { return "on the host: " + operations_on_host<BareStream>(); }

 protected:
  void* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(void* data, std::size_t bytes) noexcept override { memory_.release(data, bytes); }
  void* allocate_host(std::size_t bytes) override { return ::operator new(bytes, std::align_val_t(64)); }
  void release_host(void* data, std::size_t) noexcept override { ::operator delete(data, std::align_val_t(64)); }

 private:
  int threads_;
  std::unique_ptr<Device> processor_;
  Memory memory_;
};

std::unique_ptr<Device> make(const DeviceConfig& config) {
  return std::make_unique<BareDevice>(config.threads);
}
void check() {}

}  // namespace
}  // namespace orthant::bare

ORTHANT_DEVICE("bare", orthant::bare::make, orthant::bare::check)
