#include "core/device/cpu/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace orthant {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool keep_blocks = false;
#else
constexpr bool keep_blocks = true;
#endif
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t least_lent = std::size_t{64} << 10;  // smaller ones cost little to make

// The smallest class that holds `bytes`: 64, then steps of a quarter of a power of two.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 256) {
    return std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
  }
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

void* fresh_block(std::size_t size) {
  const std::size_t alignment = size >= huge_page ? huge_page : 64;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data != nullptr && size >= huge_page) {
    madvise(data, rounded, MADV_HUGEPAGE);  // a hint: fewer faults and TLB misses where the kernel follows it
  }
  return data;
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  free_kept();
}

void CachingAllocator::free_kept() noexcept {
  for (auto& [size, blocks] : kept_) {
    for (void* block : blocks) {
      std::free(block);
    }
    blocks.clear();
  }
}

void* CachingAllocator::take_kept(std::size_t size) {
  const std::size_t largest = size >= least_lent ? 2 * size : size;
  for (auto next = kept_.lower_bound(size); next != kept_.end() && next->first <= largest; ++next) {
    std::vector<void*>& blocks = next->second;
    if (!blocks.empty()) {
      void* const data = blocks.back();
      if (next->first != size) {
        lent_class_[data] = next->first;
      }
      blocks.pop_back();
      return data;
    }
  }
  return nullptr;
}

void* CachingAllocator::allocate(std::size_t bytes) {
  // Beyond this no request is sensible, and the rounding to a size class could overflow.
  constexpr std::size_t limit = std::size_t{1} << 60;
  const std::size_t size = bytes < limit ? size_class(bytes) : 0;
  std::lock_guard lock(mutex_);
  void* data = size > 0 ? take_kept(size) : nullptr;
  if (data == nullptr && size > 0) {
    data = fresh_block(size);
    if (data == nullptr) {
      free_kept();
      data = fresh_block(size);
    }
  }
  return data;
}

void CachingAllocator::release(void* data, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  if (keep_blocks) {
    try {
      const auto lent = lent_class_.find(data);
      kept_[lent == lent_class_.end() ? size_class(bytes) : lent->second].push_back(data);
      if (lent != lent_class_.end()) {
        lent_class_.erase(lent);
      }
      return;
    } catch (const std::bad_alloc&) {
      // No room to remember the block: give it back instead.
    }
  }
  lent_class_.erase(data);
  std::free(data);
}

}  // namespace orthant
