// The cache of device memory: blocks never overlap, and what is given back is whole again.
#include "core/device/cuda/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace orthant::cuda::block_cache_test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// Addresses that are never touched: segments lie one after another, without a gap between them.
class Memory {
 public:
  std::byte* take(std::size_t bytes) {
    if (std::byte* block = cache.take(bytes)) {
      return block;
    }
    const std::size_t size = BlockCache::segment_for(bytes, BlockCache::Segment::usual);
    segments[next_] = size;
    cache.add(reinterpret_cast<std::byte*>(next_), size, bytes);
    next_ += size;
    return cache.take(bytes);
  }
  BlockCache cache;
  std::map<std::uintptr_t, std::size_t> segments;

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

TEST(BlockCache, BlocksNeverOverlapAndLieInASegment) {
  Memory memory;
  std::mt19937 random(1);
  std::map<std::uintptr_t, std::size_t> used;
  std::size_t most = 0, bytes_used = 0;
  for (int i = 0; i < 20000; ++i) {
    if (used.size() < 60 && random() % 2 == 0) {
      const std::size_t bytes = random() % 3 == 0 ? random() % (40 * mebibyte) : random() % 5000;
      const auto at = reinterpret_cast<std::uintptr_t>(memory.take(bytes));
      ASSERT_EQ(at % BlockCache::alignment, 0u);
      auto segment = memory.segments.upper_bound(at);
      ASSERT_NE(segment, memory.segments.begin());
      --segment;
      ASSERT_LE(at + bytes, segment->first + segment->second);
      const auto after = used.lower_bound(at);
      ASSERT_TRUE(after == used.end() || at + bytes <= after->first);
      ASSERT_TRUE(after == used.begin() || std::prev(after)->first + std::prev(after)->second <= at);
      ASSERT_EQ(used.count(at), 0u);
      used[at] = bytes;
      bytes_used += bytes;
      most = std::max(most, bytes_used);
    } else if (!used.empty()) {
      const auto one = std::next(used.begin(), static_cast<std::ptrdiff_t>(random() % used.size()));
      bytes_used -= one->second;
      memory.cache.give(reinterpret_cast<std::byte*>(one->first));
      used.erase(one);
    }
  }
  EXPECT_LT(memory.cache.reserved_bytes(), 2 * most);  // it does not fall to pieces
  for (const auto& [at, bytes] : used) {
    memory.cache.give(reinterpret_cast<std::byte*>(at));
  }
  EXPECT_EQ(memory.cache.remove_unused().size(), memory.segments.size());
  EXPECT_EQ(memory.cache.reserved_bytes(), 0u);
}

TEST(BlockCache, WhatIsGivenBackIsTakenAgain) {
  Memory memory;
  std::byte* const a = memory.take(10 * mebibyte);
  memory.cache.give(a);
  EXPECT_EQ(memory.take(10 * mebibyte), a);
  // Three neighbours, given back in any order, are one again.
  std::byte* const b = memory.take(5 * mebibyte);
  std::byte* const c = memory.take(5 * mebibyte);
  memory.cache.give(a);
  memory.cache.give(c);
  memory.cache.give(b);
  EXPECT_EQ(memory.take(64 * mebibyte), a);
  EXPECT_EQ(memory.segments.size(), 1u);
}

TEST(BlockCache, SmallBlocksStayOutOfLargeSegments) {
  Memory memory;
  std::byte* const large = memory.take(2 * mebibyte);
  memory.take(100);
  memory.cache.give(large);
  EXPECT_EQ(memory.cache.remove_unused(), std::vector<std::byte*>{large});
}

TEST(BlockCache, RefusesWhatItDidNotHandOut) {
  Memory memory;
  std::byte* const a = memory.take(1000);
  EXPECT_ANY_THROW(memory.cache.give(a + 256));
  memory.cache.give(a);
  EXPECT_ANY_THROW(memory.cache.give(a));
}

}  // namespace
}  // namespace orthant::cuda::block_cache_test
