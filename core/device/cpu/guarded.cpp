#include "core/device/cpu/guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/check.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/side_stream.h"
#include "core/device/own_operation.h"

namespace orthant {
namespace {

std::size_t page_size() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

class GuardedView : public HostView {
 public:
  GuardedView(GuardedDevice& device, const Tensor& tensor)
      : HostView(tensor.as<std::byte>(), tensor.bytes()), device_(device), tensor_(tensor) {
    device_.open(tensor_);
  }
  ~GuardedView() override { device_.close(tensor_); }

 private:
  GuardedDevice& device_;
  Tensor tensor_;
};

// Mappings of more are given back when they are released; the others are used again, as most allocations of a test are
// small and of few sizes.
constexpr std::size_t most_kept_bytes = 256 << 10;

// NaN of one sign or the other, by what is there: who compares what two fillings become sees what nobody wrote.
void spoil(const Tensor& t) {
  auto* const bytes = t.as<std::byte>();
  const bool zeros = std::all_of(bytes, bytes + t.bytes(), [](std::byte b) { return b == std::byte{0}; });
  std::memset(bytes, 0xff, t.bytes());
  for (std::size_t i = 3; zeros && i < t.bytes(); i += 4) {
    bytes[i] = std::byte{0x7f};
  }
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f64;
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto *first = a.as<std::byte>(), *second = b.as<std::byte>();
  return first < second + b.bytes() && second < first + a.bytes();
}

}  // namespace

// Floats that are outputs and no inputs hold what no function of the inputs makes: a device that runs it on copies
// brings nothing.
void GuardedStream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  for (const Tensor& output : operation.outputs) {
    const bool read = std::any_of(operation.inputs.begin(), operation.inputs.end(),
                                  [&](const Tensor& input) { return input.defined() && overlap(input, output); });
    if (output.defined() && !read && is_float(output.dtype())) {
      forward("apply", {output}, [t = seen(output)](Stream&) { spoil(t); });
    }
  }
  ForwardingStream::apply(operation);
}

GuardedDevice::GuardedDevice(int threads) : threads_(threads) {
  require(threads >= 1, "the guarded device needs at least one thread, got {}", threads);
  file_ = memfd_create("orthant_guarded", MFD_CLOEXEC);
  if (file_ < 0) {
    fail("the guarded device cannot make a file in memory: {}", std::strerror(errno));
  }
}

GuardedDevice::~GuardedDevice() {
  for (const auto& [bytes, mappings] : unused_) {
    for (std::byte* begin : mappings) {
      munmap(begin, 2 * (bytes + page_size()));
    }
  }
  ::close(file_);
}

std::unique_ptr<Stream> GuardedDevice::make_main_stream() {
  return std::make_unique<GuardedStream>(*this, std::make_unique<CpuStream>(*this, threads_));
}

std::unique_ptr<Stream> GuardedDevice::make_side_stream() {
  return std::make_unique<SideStream>(make_main_stream());
}

std::unique_ptr<Stream> GuardedDevice::make_host_stream() {
  return std::make_unique<SideStream>(
      std::make_unique<GuardedStream>(*this, std::make_unique<CpuStream>(*this, threads_), Memory::host));
}

std::unique_ptr<HostView> GuardedDevice::host_view(const Tensor& tensor, Access) {
  require_defined("host_view", "tensor", tensor);
  return std::make_unique<GuardedView>(*this, tensor);
}

// The first mapping, closed; the second is `bytes` and a page behind it.
std::byte* GuardedDevice::map_twice(std::size_t bytes) {
  const std::size_t apart = bytes + page_size();
  void* all = mmap(nullptr, 2 * apart, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) {
    return nullptr;
  }
  auto* begin = static_cast<std::byte*>(all);
  const auto at = static_cast<off_t>(file_bytes_);
  const auto map = [&](std::byte* where, int access) {
    return mmap(where, bytes, access, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, at) != MAP_FAILED;
  };
  if (ftruncate(file_, at + static_cast<off_t>(bytes)) != 0 || !map(begin, PROT_NONE) ||
      !map(begin + apart, PROT_READ | PROT_WRITE)) {
    munmap(begin, 2 * apart);
    return nullptr;
  }
  file_bytes_ += bytes;
  return begin;
}

void* GuardedDevice::allocate(std::size_t bytes) {
  const std::size_t page = page_size();
  const std::size_t data_bytes = std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
  Pages pages;
  pages.bytes = (data_bytes + page - 1) / page * page;
  std::lock_guard lock(mutex_);
  std::vector<std::byte*>& unused = unused_[pages.bytes];
  if (!unused.empty()) {
    pages.begin = unused.back();
    unused.pop_back();
  } else {
    pages.begin = map_twice(pages.bytes);
  }
  require(pages.begin != nullptr, "out of host memory: a tensor of {} bytes was asked for, {} bytes are in use", bytes,
          memory().current_bytes);
  void* data = pages.begin + (pages.bytes - data_bytes);
  pages_.emplace(data, pages);
  return data;
}

void GuardedDevice::release(void* data, std::size_t) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = pages_.find(data);
  const Pages pages = found->second;
  pages_.erase(found);
  if (pages.bytes <= most_kept_bytes) {
    unused_[pages.bytes].push_back(pages.begin);
    return;
  }
  const std::size_t apart = pages.bytes + page_size();
  madvise(pages.begin + apart, pages.bytes, MADV_REMOVE);  // its place in the file is empty, and is not used again
  munmap(pages.begin, 2 * apart);
}

Tensor GuardedDevice::seen(const Tensor& tensor) {
  const std::shared_ptr<Storage>& storage = tensor.storage();
  auto* data = static_cast<std::byte*>(storage->data());
  const auto offset = static_cast<std::size_t>(tensor.as<std::byte>() - data);
  {
    std::lock_guard lock(mutex_);
    const auto found = pages_.find(data);
    require(found != pages_.end(), "a tensor of device \"{}\" was given to an operation of device \"guarded\"",
            tensor.device().name());
    data += found->second.bytes + page_size();
  }
  return Tensor(std::make_shared<Storage>(*storage, data), offset, tensor.dtype(), tensor.shape());
}

void GuardedDevice::open(const Tensor& tensor) {
  std::lock_guard lock(mutex_);
  const auto found = pages_.find(tensor.storage()->data());
  require(found != pages_.end(), "a tensor of device \"{}\" was given to device \"guarded\"", tensor.device().name());
  if (found->second.users++ == 0) {
    require(mprotect(found->second.begin, found->second.bytes, PROT_READ | PROT_WRITE) == 0,
            "the guarded device cannot make {} bytes readable", found->second.bytes);
  }
}

void GuardedDevice::close(const Tensor& tensor) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = pages_.find(tensor.storage()->data());
  if (found != pages_.end() && --found->second.users == 0) {
    mprotect(found->second.begin, found->second.bytes, PROT_NONE);
  }
}

void GuardedStream::forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) {
  const std::string_view called = name;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined() || called == "upload" || called == "download") {
      continue;
    }
    if (computes_on_ == Memory::device) {
      require(!tensor.on_host(),
              "{} was given a tensor of the host's memory: only upload, download, HostView and host streams take it",
              called);
    } else {
      require(tensor.on_host(), "{} of a host stream was given a tensor of the device's memory", called);
    }
  }
  operation(*inner_);
}

std::unique_ptr<Device> make_guarded_device(int threads) {
  return std::make_unique<GuardedDevice>(threads);
}

}  // namespace orthant
