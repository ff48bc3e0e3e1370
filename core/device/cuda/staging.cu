#include "core/device/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {
namespace {

constexpr std::size_t least_pinned = 4096;
// Larger uploads go in parts, so that filling and copying overlap.
constexpr std::size_t one_copy = std::size_t{8} << 20;
constexpr std::size_t most_in_flight = std::size_t{128} << 20;

}  // namespace

PinnedCache::~PinnedCache() {
  for (const auto& [bytes, data] : free_) {
    static_cast<void>(cudaFreeHost(data));
  }
}

PinnedCache::Block PinnedCache::take(std::size_t bytes) {
  // Classes a quarter of a power of two apart.
  const std::size_t step = std::bit_floor(std::max(bytes, least_pinned) - 1) / 4;
  const std::size_t size = std::max(least_pinned, (bytes + step - 1) / step * step);
  {
    const std::lock_guard lock(mutex_);
    if (auto found = free_.extract(size)) {
      return {found.mapped(), size};
    }
  }
  void* data = nullptr;
  check(cudaHostAlloc(&data, size, cudaHostAllocPortable), fmt::format("pinning {} bytes of host memory", size));
  return {static_cast<std::byte*>(data), size};
}

void PinnedCache::give(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  free_.emplace(block.bytes, block.data);
}

// The main stream has been waited for.
HostTensors::~HostTensors() {
  for (const Leaving& one : leaving_) {
    if (one.passed != nullptr) {
      events_.give(one.passed);
    }
    pinned_.give(one.block);
  }
}

void* HostTensors::allocate(std::size_t bytes, bool capturing) {
  const std::lock_guard lock(mutex_);
  if (!capturing) {
    collect();
  }
  const PinnedCache::Block block = pinned_.take(bytes);
  used_[block.data] = block;
  return block.data;
}

void HostTensors::release(void* data, bool capturing) noexcept {
  const std::lock_guard lock(mutex_);
  cudaEvent_t passed = nullptr;
  if (!capturing) {
    try {
      passed = events_.record(main_);
    } catch (...) {  // the device has failed: the memory stays until it goes
    }
  }
  leaving_.push_back({passed, used_.extract(data).mapped()});
}

void HostTensors::collect() noexcept {
  while (!leaving_.empty()) {
    Leaving& oldest = leaving_.front();
    if (oldest.passed == nullptr) {
      try {
        oldest.passed = events_.record(main_);
      } catch (...) {
        return;
      }
    }
    if (query(oldest.passed) != cudaSuccess) {
      return;
    }
    events_.give(oldest.passed);
    pinned_.give(oldest.block);
    leaving_.pop_front();
  }
}

void copy_bytes(const StreamRef& stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const auto copy = [=](cudaStream_t order) {
    check(cudaMemcpyAsync(to, from, bytes, kind, order), fmt::format("copying {} bytes", bytes));
  };
  stream.give("copy", copy, {}, to, from, bytes, kind);
}

Uploads::~Uploads() {
  try {
    collect(0);
  } catch (...) {  // the device has failed: what is on its way stays pinned
  }
}

void Uploads::copy(void* to, const void* host, std::size_t bytes) {
  if (stream_.lists() != nullptr) {
    list(to, host, bytes);
    return;
  }
  for (std::size_t at = 0; at < bytes; at += one_copy) {
    const std::size_t part = std::min(one_copy, bytes - at);
    collect(most_in_flight);
    const PinnedCache::Block block = pinned_.take(part);
    std::memcpy(block.data, static_cast<const std::byte*>(host) + at, part);
    copy_bytes(stream_, static_cast<std::byte*>(to) + at, block.data, part, cudaMemcpyHostToDevice);
    in_flight_.push_back({events_.record(stream_), block});
    in_flight_bytes_ += block.bytes;
  }
}

// Its bytes are part of its key: other ones are another command.
void Uploads::list(void* to, const void* host, std::size_t bytes) {
  const std::shared_ptr<PinnedCache::Block> block(new PinnedCache::Block(pinned_.take(bytes)),
                                                  [pinned = &pinned_](PinnedCache::Block* done) {
                                                    pinned->give(*done);
                                                    delete done;
                                                  });
  std::memcpy(block->data, host, bytes);
  const auto copy = [=](cudaStream_t order) {
    check(cudaMemcpyAsync(to, block->data, bytes, cudaMemcpyHostToDevice, order),
          fmt::format("copying {} bytes to the device", bytes));
  };
  stream_.give("upload", copy, {static_cast<const std::byte*>(host), bytes}, to, bytes);
}

void Uploads::collect(std::size_t most_bytes) {
  while (!in_flight_.empty()) {
    const InFlight oldest = in_flight_.front();
    if (in_flight_bytes_ > most_bytes) {
      check(cudaEventSynchronize(oldest.passed), "waiting for a copy to the device");
    } else if (query(oldest.passed) != cudaSuccess) {
      return;
    }
    events_.give(oldest.passed);
    pinned_.give(oldest.block);
    in_flight_bytes_ -= oldest.block.bytes;
    in_flight_.pop_front();
  }
}

}  // namespace orthant::cuda
