// WordCache: the ids of words that were encoded lately.
//
// Bounded: when it is full it is emptied. Thread safety: belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace orthant {

class WordCache {
 public:
  static constexpr std::size_t longest_word = 64;  // bytes; longer words are not asked for

  WordCache();
  // Of equal words of two kinds each has ids of its own. The hash is for put.
  struct Found {
    std::uint64_t hash;
    bool hit;
    std::span<const std::int32_t> ids;  // until the next put
  };
  Found find(std::string_view word, bool kind) const;
  // REQUIRES: find has not found it, and `hash` is what it said.
  void put(std::uint64_t hash, std::string_view word, bool kind, std::span<const std::int32_t> ids);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t text = 0;   // where its bytes begin
    std::uint32_t first = 0;  // where its ids begin
    std::uint16_t count = 0;  // of its ids
    std::uint8_t size = 0;    // of its bytes; 0: the slot is empty
    bool kind = false;
  };
  void clear();

  std::vector<Slot> slots_;
  std::vector<char> text_;
  std::vector<std::int32_t> ids_;
  std::size_t used_ = 0;
};

}  // namespace orthant
