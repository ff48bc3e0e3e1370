#include "core/device/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
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

void* HostTensors::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  collect();
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

Uploads::~Uploads() {
  dropped();
  try {
    collect(0);
  } catch (...) {  // the device has failed: what is on its way stays pinned
  }
}

void Uploads::copy(void* to, const void* host, std::size_t bytes, bool captured) {
  for (std::size_t at = 0; at < bytes; at += one_copy) {
    const std::size_t part = std::min(one_copy, bytes - at);
    if (!captured) {
      collect(most_in_flight);
    }
    const PinnedCache::Block block = pinned_.take(part);
    std::memcpy(block.data, static_cast<const std::byte*>(host) + at, part);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, block.data, part, cudaMemcpyHostToDevice, stream_),
          fmt::format("copying {} bytes to the device", part));
    if (captured) {
      captured_.push_back(block);
    } else {
      send_off({block});
    }
  }
}

void Uploads::launched() {
  if (!captured_.empty()) {
    send_off(std::exchange(captured_, {}));
  }
}

void Uploads::dropped() noexcept {
  for (const PinnedCache::Block& block : std::exchange(captured_, {})) {
    pinned_.give(block);
  }
}

void Uploads::send_off(std::vector<PinnedCache::Block> blocks) {
  in_flight_.push_back({events_.record(stream_), std::move(blocks)});
  in_flight_bytes_ += in_flight_.back().bytes();
}

std::size_t Uploads::InFlight::bytes() const {
  std::size_t sum = 0;
  for (const PinnedCache::Block& block : blocks) {
    sum += block.bytes;
  }
  return sum;
}

void Uploads::collect(std::size_t most_bytes) {
  while (!in_flight_.empty()) {
    InFlight& oldest = in_flight_.front();
    if (in_flight_bytes_ > most_bytes) {
      check(cudaEventSynchronize(oldest.passed), "waiting for a copy to the device");
    } else if (query(oldest.passed) != cudaSuccess) {
      return;
    }
    events_.give(oldest.passed);
    for (const PinnedCache::Block& block : oldest.blocks) {
      pinned_.give(block);
    }
    in_flight_bytes_ -= oldest.bytes();
    in_flight_.pop_front();
  }
}

}  // namespace orthant::cuda
