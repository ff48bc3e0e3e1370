// MergeTable: which two neighbours of a word become one token, and in which order.
//
// Byte pair encoding (Sennrich et al. 2016): the pair of the lowest rank is merged first, of two with one rank the
// left one. Thread safety: constant; a MergeWork belongs to one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace orthant {

struct Merge {
  std::uint32_t rank = std::numeric_limits<std::uint32_t>::max();  // none
  std::int32_t id = 0;                                             // of the merged token
  bool exists() const { return rank != std::numeric_limits<std::uint32_t>::max(); }
};

struct MergeWork {
  std::vector<Merge> pairs;  // of each token with the one behind it
  struct Link {
    std::int32_t before, behind;  // -1: none
  };
  std::vector<Link> links;
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at, id;
  };
  std::vector<Candidate> heap;
};

class MergeTable {
 public:
  // REQUIRES: fewer than 2^31 pairs in all.
  explicit MergeTable(std::size_t pairs);
  // Of two equal pairs the later one stays.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) {
        return slots_[slot].merge;
      }
      if (slots_[slot].key == empty) {
        return {};
      }
    }
  }

  // Merges until no pair is left that may be. O(n^2) in words of a few tokens, O(n log n) in long ones.
  void apply(std::vector<std::int32_t>& tokens, MergeWork& work) const;

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = empty;
    Merge merge;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15u) >> 32) & mask_;
  }
  void apply_to_short(std::vector<std::int32_t>& tokens, MergeWork& work) const;
  void apply_to_long(std::vector<std::int32_t>& tokens, MergeWork& work) const;

  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace orthant
