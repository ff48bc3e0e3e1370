// A caching allocator for tensors on the host.
//
// A training step allocates and frees the same sizes over and over, and fresh pages are expensive (a fault and a
// clearing each), so freed blocks are kept on a free list of their size class (classes are a quarter of a power of
// two apart) and handed out again. Sizes that routing decides are others in each step: where no block of a large class
// is free, one of up to twice the size is lent, and goes back to its own class. Under AddressSanitizer nothing is kept,
// so that a use after free is seen.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace orthant {

class CachingAllocator {
 public:
  CachingAllocator() = default;
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Aligned to 64 bytes; null where there is no memory, and only then.
  void* allocate(std::size_t bytes);
  void release(void* data, std::size_t bytes) noexcept;  // bytes: as asked for

 private:
  void* take_kept(std::size_t size);  // null: none fits
  void free_kept() noexcept;

  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> kept_;     // size class -> free blocks
  std::unordered_map<void*, std::size_t> lent_class_;  // of blocks that are larger than they were asked for
};

}  // namespace orthant
