// What the models of Hopper's instructions know of the blocks that run: addresses of shared memory, what goes on beside
// the threads, and which bytes may be read by whom. Inside of the shim.
//
// Each 16 bytes of dynamic shared memory have a Piece. PTX ISA, "Async proxy": bulk copies and wgmma read what ordinary
// stores wrote only after the writer's fence.proxy.async and a barrier; "Completion mechanisms": what a copy brings is
// there when it has been waited for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simt/warpgroup.h"

namespace orthant::simt {

inline constexpr std::uint32_t shared_begin = 128;
inline constexpr int group_threads = 128;

struct Piece {
  std::uint16_t unfenced = 0;    // stores to it without a fence.proxy.async yet
  std::int16_t writer = -1;      // whose the last of them is
  std::uint16_t on_its_way = 0;  // copies to it that have not ended
  std::uint16_t being_read = 0;  // bulk stores from it that have not read it
};

struct Copy {
  std::byte* to;
  const void* from;  // null: zeros
  Piece* piece;      // null: not of dynamic shared memory
};

// The operands of one product as they were read, [rows or columns][depth].
struct Product {
  static constexpr int rows = 64, depth = 16, most_columns = 256;
  std::uint64_t number = 0;  // among the group's, from 1; 0: none
  std::uint64_t a = 0, b = 0;
  bool transposed_a = false, transposed_b = false;
  int columns = 0;
  std::array<float, rows * depth> of_a;
  std::array<float, most_columns * depth> of_b;
};

// Sums that a thread must not see yet.
struct Hidden {
  float* sums;
  std::vector<float> values;
  int batch;  // the last that adds to them
};

struct BlockThread {
  std::vector<Copy> copies;
  std::vector<std::vector<Copy>> groups;  // the oldest first
  bool proxy_fenced = true, fenced = false;
  std::uint64_t products = 0;  // of this thread so far
  int batch = 0;               // the open one; those before are committed
  std::vector<Hidden> hidden;
  std::vector<std::pair<std::uint64_t, int>> unchecked;  // products by number, and their batch
  std::vector<Piece*> unfenced;                          // that it has written
  std::vector<std::function<void()>> stores;             // bulk ones of the open group
  std::vector<std::vector<std::function<void()>>> store_groups;
};

struct NamedBarrier {
  int arrived = 0;
  std::uint64_t generation = 0;
};

struct OneBlock {
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> barriers;  // addresses without their window
  std::array<NamedBarrier, 16> named;
};

// Of the block, or cluster, that runs.
struct BlockState {
  std::uint64_t number = 0;
  std::vector<BlockThread> threads;
  std::vector<OneBlock> blocks;
  std::vector<std::unique_ptr<Product>> products;  // [group][number % kept_products]
  int loads = 0;                                   // bulk ones that have not ended
};
inline constexpr int kept_products = 64;

BlockState& block_state();
BlockThread& this_thread_of_block();

// A place of shared memory: of which block of the cluster, and from its beginning.
struct SharedPlace {
  unsigned rank;
  std::uint32_t offset;
};
// What names the running block in its own shared addresses.
std::uint32_t own_window();
// Errors: misuse where the bytes are not there; for another block's also where no cluster barrier has been passed, or
// that block has ended.
SharedPlace shared_place(std::uint32_t address, std::size_t bytes, const Where& where);
// The running thread's own block's; that of others is refused.
SharedPlace own_place(std::uint32_t address, std::size_t bytes, const Where& where);
std::byte* bytes_at(SharedPlace place);
Piece& piece_at(SharedPlace place);

// Bytes have come for the barrier's phase.
void complete_bytes(SharedPlace barrier, std::int64_t bytes, const Where& where);

// All lanes of the warp come to the same call.
void come_together(const char* function, const Where& where);

}  // namespace orthant::simt
