// BlockCache: cuts segments of device memory into blocks, and keeps for later use what is given back. Best fit; a block
// that is given back joins its free neighbours. Bookkeeping alone: no byte of the memory is touched.
//
// Blocks of up to a megabyte and larger ones come from different segments, so that small ones, which often live long,
// do not keep large segments from being used whole (as PyTorch's caching allocator has it).
// Thread safety: none; the owner locks.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace orthant::cuda {

class BlockCache {
 public:
  static constexpr std::size_t alignment = 256;

  // At least `bytes` of a segment that is here; null where none has the room.
  std::byte* take(std::size_t bytes);
  // REQUIRES: a block of take(). Returns at once to the free ones.
  void give(std::byte* block);

  // How large a segment add() should get when take(bytes) has found none; `least` where memory is short.
  enum class Segment { usual, least };
  static std::size_t segment_for(std::size_t bytes, Segment size);
  // A further segment, aligned to `alignment`, for blocks of the size class of `for_bytes`.
  void add(std::byte* segment, std::size_t bytes, std::size_t for_bytes);
  // The segments in which no block is in use, which this forgets.
  std::vector<std::byte*> remove_unused();

  std::size_t reserved_bytes() const { return reserved_; }

 private:
  struct Block {
    std::size_t bytes;
    bool used;
    bool small;
    bool first;  // of its segment
  };
  using Blocks = std::map<std::byte*, Block>;
  using Free = std::set<std::pair<std::size_t, std::byte*>>;  // size, address

  Free& free_of(const Block& block) { return free_[block.small ? 0 : 1]; }
  void unlist(Blocks::iterator block);
  void list(Blocks::iterator block);

  Blocks blocks_;  // all of them, by address
  Free free_[2];   // small, large
  std::size_t reserved_ = 0;
};

}  // namespace orthant::cuda
