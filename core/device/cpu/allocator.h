// A caching allocator for tensors on the host.
//
// A training step allocates and frees the same sizes over and over, and fresh pages are expensive (a fault and a
// clearing each), so freed blocks are kept on a free list of their size class (classes are a quarter of a power of
// two apart) and handed out again. Under AddressSanitizer nothing is kept, so that a use after free is seen.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "core/base/memory_count.h"

namespace orthant {

class CachingAllocator {
 public:
  CachingAllocator() = default;
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Aligned to 64 bytes; never null, also for zero bytes. Errors: Error naming the bytes asked for and in use.
  void* allocate(std::size_t bytes);
  void release(void* data, std::size_t bytes) noexcept;  // bytes: as asked for

  MemoryUse use() const { return count_.use(); }  // bytes of live tensors, not of kept blocks
  void reset_peak() { count_.reset_peak(); }

 private:
  void free_kept() noexcept;

  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> kept_;  // size class -> free blocks
  MemoryCount count_;
};

}  // namespace orthant
