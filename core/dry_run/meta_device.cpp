#include "core/dry_run/meta_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "core/base/check.h"

namespace orthant {
namespace {

constexpr std::size_t held_bytes = std::size_t{1} << 12;
constexpr std::size_t held_counts = std::size_t{1} << 28;  // those of 65536 experts on 1024 ranks
// Below this a mapping of its own would cost more than zeroed memory from the heap.
constexpr std::size_t mapped_bytes = std::size_t{1} << 12;

// Null: none are left.
void* map_zeros(std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

class DirectView final : public HostView {
 public:
  explicit DirectView(const Tensor& tensor) : HostView(tensor.as<std::byte>(), tensor.bytes()), tensor_(tensor) {}

 private:
  Tensor tensor_;
};

}  // namespace

bool holds_data(const Tensor& tensor) {
  if (!tensor.defined()) {
    return false;
  }
  const bool read = tensor.dtype() == DType::i32 || tensor.dtype() == DType::i64 || tensor.dtype() == DType::f64;
  return tensor.storage()->bytes() <= (read ? held_counts : held_bytes);
}

std::unique_ptr<Stream> MetaDevice::make_main_stream() {
  return std::make_unique<MetaStream>(*this, nullptr);
}

std::unique_ptr<Stream> MetaDevice::make_side_stream() {
  if (sides_ == Sides::at_once) {
    return make_main_stream();
  }
  late_.push_back(std::make_unique<LateWork>());
  return std::make_unique<MetaStream>(*this, late_.back().get(), sides_ == Sides::sums_late);
}

std::unique_ptr<HostView> MetaDevice::host_view(const Tensor& t, Access) {
  require_defined("host_view", "t", t);
  return std::make_unique<DirectView>(t);
}

MetaDevice::~MetaDevice() {
  late_.clear();  // may hold tensors
  unmap_unused();
}

// Anonymous memory that nobody touches takes addresses only, and reads as zero.
void* MetaDevice::allocate(std::size_t bytes) {
  void* data = nullptr;
  if (bytes < mapped_bytes) {
    data = std::calloc(std::max<std::size_t>(bytes, 1), 1);
  } else if (Mappings& mappings = mappings_[bytes]; !mappings.unused.empty()) {
    data = mappings.unused.back();
    mappings.unused.pop_back();
  } else {
    mappings.unused.reserve(++mappings.made);
    data = map_zeros(bytes);
    if (data == nullptr) {
      unmap_unused();
      data = map_zeros(bytes);
    }
  }
  require(
      data != nullptr,
      "no memory addresses are left to plan a tensor of {} bytes; {} bytes are in use (see ulimit -d and ulimit -v)",
      bytes, memory().current_bytes);
  return data;
}

void MetaDevice::release(void* data, std::size_t bytes) noexcept {
  if (bytes < mapped_bytes) {
    std::free(data);
  } else if (madvise(data, bytes, MADV_DONTNEED) == 0) {  // reads as zero again
    mappings_.find(bytes)->second.unused.push_back(data);
  } else {
    munmap(data, bytes);
  }
}

void MetaDevice::unmap_unused() noexcept {
  for (auto& [bytes, mappings] : mappings_) {
    for (void* data : mappings.unused) {
      munmap(data, bytes);
    }
    mappings.made -= mappings.unused.size();
    mappings.unused.clear();
  }
}

}  // namespace orthant
