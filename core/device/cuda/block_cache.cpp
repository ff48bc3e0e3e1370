#include "core/device/cuda/block_cache.h"

#include <orthant/error.h>

#include <algorithm>
#include <iterator>

namespace orthant::cuda {
namespace {

constexpr std::size_t kibibyte = 1024, mebibyte = 1024 * kibibyte;
constexpr std::size_t small_limit = mebibyte, small_segment = 8 * mebibyte, large_segment = 64 * mebibyte;

std::size_t rounded(std::size_t bytes, std::size_t to) {
  return (std::max<std::size_t>(bytes, 1) + to - 1) / to * to;
}

bool is_small(std::size_t bytes) {
  return bytes <= small_limit;
}

}  // namespace

void BlockCache::list(Blocks::iterator block) {
  free_of(block->second).insert({block->second.bytes, block->first});
}

void BlockCache::unlist(Blocks::iterator block) {
  free_of(block->second).erase({block->second.bytes, block->first});
}

std::byte* BlockCache::take(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes, alignment);
  const bool small = is_small(wanted);
  Free& candidates = free_[small ? 0 : 1];
  const auto fit = candidates.lower_bound({wanted, nullptr});
  if (fit == candidates.end()) {
    return nullptr;
  }
  const Blocks::iterator block = blocks_.find(fit->second);
  unlist(block);
  const std::size_t rest = block->second.bytes - wanted;
  // A rest that nobody asks for stays with the block.
  if (rest >= (small ? alignment : small_limit)) {
    block->second.bytes = wanted;
    const auto after = blocks_.emplace(block->first + wanted, Block{rest, false, small, false}).first;
    list(after);
  }
  block->second.used = true;
  return block->first;
}

void BlockCache::give(std::byte* address) {
  const Blocks::iterator block = blocks_.find(address);
  require(block != blocks_.end() && block->second.used, "a block of device memory is given back that is not in use");
  block->second.used = false;
  Blocks::iterator whole = block;
  if (const auto next = std::next(block); next != blocks_.end() && !next->second.first && !next->second.used) {
    unlist(next);
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (!block->second.first && !std::prev(block)->second.used) {
    whole = std::prev(block);
    unlist(whole);
    whole->second.bytes += block->second.bytes;
    blocks_.erase(block);
  }
  list(whole);
}

std::size_t BlockCache::segment_for(std::size_t bytes, Segment size) {
  const std::size_t least = rounded(bytes, 2 * mebibyte);
  if (size == Segment::least) {
    return least;
  }
  return std::max(least, is_small(rounded(bytes, alignment)) ? small_segment : large_segment);
}

void BlockCache::add(std::byte* segment, std::size_t bytes, std::size_t for_bytes) {
  const bool small = is_small(rounded(for_bytes, alignment));
  list(blocks_.emplace(segment, Block{bytes, false, small, true}).first);
  reserved_ += bytes;
}

std::vector<std::byte*> BlockCache::remove_unused() {
  std::vector<std::byte*> segments;
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto next = std::next(block);
    const bool alone = block->second.first && (next == blocks_.end() || next->second.first);
    if (alone && !block->second.used) {
      segments.push_back(block->first);
      reserved_ -= block->second.bytes;
      unlist(block);
      blocks_.erase(block);
    }
    block = next;
  }
  return segments;
}

}  // namespace orthant::cuda
