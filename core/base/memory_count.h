// What a device's tensors take: Device::memory.
#pragma once

#include <orthant/device.h>

#include <algorithm>
#include <cstddef>
#include <mutex>

namespace orthant {

// In the bytes that were asked for. Thread safety: all calls, from any thread.
class MemoryCount {
 public:
  void add(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.current_bytes += static_cast<std::int64_t>(bytes);
    use_.peak_bytes = std::max(use_.peak_bytes, use_.current_bytes);
  }
  void remove(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.current_bytes -= static_cast<std::int64_t>(bytes);
  }
  MemoryUse use() const {
    const std::lock_guard lock(mutex_);
    return use_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    use_.peak_bytes = use_.current_bytes;
  }

 private:
  mutable std::mutex mutex_;
  MemoryUse use_;
};

}  // namespace orthant
