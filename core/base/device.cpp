// The accounts of a device's tensors: how much memory, what for, and how much there may be.
#include <orthant/device.h>

#include "core/base/memory_count.h"

namespace orthant {

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::weights: return "weights";
    case MemoryKind::gradients: return "gradients";
    case MemoryKind::states: return "states";
    case MemoryKind::activations: return "activations";
    case MemoryKind::exchange: return "exchange";
    case MemoryKind::work: return "work";
    case MemoryKind::offload: return "offload";
    case MemoryKind::other: return "other";
  }
  return "?";
}

struct Device::Accounts {
  MemoryCount device, host;
  ThreadKinds kinds;
  MemoryCount& of(Memory memory) { return memory == Memory::device ? device : host; }
};

Device::Device() : accounts_(std::make_shared<Accounts>()) {}
Device::Device(const Device& of) : accounts_(of.accounts_) {}

MemoryUse Device::memory() const {
  return accounts_->device.use();
}

MemoryUse Device::host_memory() const {
  return accounts_->host.use();
}

void Device::reset_peak() {
  accounts_->device.reset_peak();
  accounts_->host.reset_peak();
}

void Device::limit_memory(std::int64_t bytes) {
  accounts_->device.set_limit(bytes);
}

void Device::limit_host_memory(std::int64_t bytes) {
  accounts_->host.set_limit(bytes);
}

namespace {

[[noreturn]] void refuse(const MemoryCount& count, std::size_t bytes, MemoryKind kind, const char* key,
                         const char* where) {
  const MemoryUse use = count.use();
  fail(
      "memory.{}: a tensor of {} bytes ({}) would exceed the {} bytes that the tensors of a rank may take{}; {} bytes "
      "are in use: {}",
      key, bytes, name_of(kind), count.limit(), where, use.current_bytes, text_of(use.current_kinds));
}

template <class Allocate>
void* reserved(MemoryCount& count, std::size_t bytes, MemoryKind kind, Allocate allocate) {
  void* data = nullptr;
  try {
    data = allocate();
  } catch (...) {
    count.cancel(bytes);
    throw;
  }
  count.add(bytes, kind);
  return data;
}

}  // namespace

Tensor Device::empty(DType dtype, Shape shape) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  const MemoryKind kind = accounts_->kinds.get();
  MemoryCount& count = accounts_->device;
  if (!count.reserve(bytes)) {
    make_room();
    if (!count.reserve(bytes)) {
      refuse(count, bytes, kind, "limit", "");
    }
  }
  void* const data = reserved(count, bytes, kind, [&] { return allocate(bytes); });
  return Tensor(std::make_shared<Storage>(*this, data, bytes, Memory::device, kind), 0, dtype, shape);
}

Tensor Device::host_empty(DType dtype, Shape shape) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  const MemoryKind kind = accounts_->kinds.get();
  if (!accounts_->host.reserve(bytes)) {
    refuse(accounts_->host, bytes, kind, "host_limit", " in the host's memory");
  }
  void* const data = reserved(accounts_->host, bytes, kind, [&] { return allocate_host(bytes); });
  return Tensor(std::make_shared<Storage>(*this, data, bytes, Memory::host, kind), 0, dtype, shape);
}

Storage::~Storage() {
  if (!owns_) {
    return;
  }
  memory_ == Memory::device ? device_->release(data_, bytes_) : device_->release_host(data_, bytes_);
  device_->accounts_->of(memory_).remove(bytes_, kind_);
}

void Storage::set_kind(MemoryKind kind) {
  device_->accounts_->of(memory_).change(bytes_, kind_, kind);
  kind_ = kind;
}

MemoryScope::MemoryScope(Device& device, MemoryKind kind)
    : device_(device), before_(device.accounts_->kinds.exchange(kind)) {}

MemoryScope::~MemoryScope() {
  device_.accounts_->kinds.exchange(before_);
}

}  // namespace orthant
