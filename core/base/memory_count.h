// What a device's tensors take, by kind: behind Device::memory, limit_memory and MemoryScope.
#pragma once

#include <orthant/device.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace orthant {

// "weights 12, work 5": kinds without bytes are left out.
inline std::string text_of(const BytesByKind& bytes) {
  std::string text;
  for (MemoryKind kind : all_memory_kinds) {
    if (bytes[kind] != 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(kind), bytes[kind]);
    }
  }
  return text.empty() ? "nothing" : text;
}

// Thread safety: all calls, from any thread.
class MemoryCount {
 public:
  // Before memory is asked for; false, and nothing changes, where the limit would be exceeded. Of two threads that ask
  // at once neither goes beyond it. Then add, or cancel where there is no memory.
  bool reserve(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::int64_t more = static_cast<std::int64_t>(bytes);
    if (limit_ > 0 && more > limit_ - use_.current_bytes - reserved_) {
      return false;
    }
    reserved_ += more;
    return true;
  }
  void cancel(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    reserved_ -= static_cast<std::int64_t>(bytes);
  }
  void add(std::size_t bytes, MemoryKind kind) {
    const std::lock_guard lock(mutex_);
    const std::int64_t more = static_cast<std::int64_t>(bytes);
    reserved_ -= more;
    use_.current_bytes += more;
    use_.current_kinds[kind] += more;
    if (use_.current_bytes > use_.peak_bytes) {
      take_peak();
    }
  }
  void remove(std::size_t bytes, MemoryKind kind) {
    const std::lock_guard lock(mutex_);
    use_.current_bytes -= static_cast<std::int64_t>(bytes);
    use_.current_kinds[kind] -= static_cast<std::int64_t>(bytes);
  }
  void change(std::size_t bytes, MemoryKind from, MemoryKind to) {
    const std::lock_guard lock(mutex_);
    use_.current_kinds[from] -= static_cast<std::int64_t>(bytes);
    use_.current_kinds[to] += static_cast<std::int64_t>(bytes);
  }
  MemoryUse use() const {
    const std::lock_guard lock(mutex_);
    return use_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    take_peak();
  }
  void set_limit(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  std::int64_t limit() const {
    const std::lock_guard lock(mutex_);
    return limit_;
  }

 private:
  void take_peak() {
    use_.peak_bytes = use_.current_bytes;
    use_.peak_kinds = use_.current_kinds;
  }

  mutable std::mutex mutex_;
  MemoryUse use_;
  std::int64_t limit_ = 0, reserved_ = 0;
};

// What each thread allocates for. Side streams work on threads of their own, at the same time as the rank's thread: a
// kind of the whole device would be whichever was set last. Thread safety: all calls, from any thread.
class ThreadKinds {
 public:
  MemoryKind get() const {
    const std::lock_guard lock(mutex_);
    const auto found = find();
    return found == kinds_.end() ? MemoryKind::other : found->second;
  }
  // The kind before. Threads without a scope are not remembered.
  MemoryKind exchange(MemoryKind kind) {
    const std::lock_guard lock(mutex_);
    const auto found = find();
    const MemoryKind before = found == kinds_.end() ? MemoryKind::other : found->second;
    if (found != kinds_.end()) {
      kinds_.erase(found);
    }
    if (kind != MemoryKind::other) {
      kinds_.emplace_back(std::this_thread::get_id(), kind);
    }
    return before;
  }

 private:
  std::vector<std::pair<std::thread::id, MemoryKind>>::const_iterator find() const {
    return std::find_if(kinds_.begin(), kinds_.end(),
                        [](const auto& entry) { return entry.first == std::this_thread::get_id(); });
  }

  mutable std::mutex mutex_;
  std::vector<std::pair<std::thread::id, MemoryKind>> kinds_;
};

}  // namespace orthant
