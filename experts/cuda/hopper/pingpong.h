// One 128 x 192 tile of a matrix product of bf16 for each of two blocks of a cluster, and the next one already begun:
// slices of 64 steps of k go through a ring of four places in shared memory. In each block a warp group produces them
// and two consume them, which take tiles in turns: while one stores its tile the other multiplies.
//
// Floors of one slice of one block. 2 x 128 x 192 x 64 FLOP take 768 cycles of the matrix units (4096 a cycle). For
// each m64n192k16 of 96 cycles they read 2 KB of A and 6 KB of B from shared memory, 85 bytes a cycle, and copies write
// 40 KB a slice, 53: 138 where 128 can be, so 830 cycles. L2 gives A's 16 KB, gathered, and half of B's 24, the other
// block reading the other half for both: 28 KB, 110 FLOP a byte, 35 bytes a cycle of 830, of at most 64 a
// multiprocessor and about 40 for each when all ask. (40 KB for the last 128 rows of an expert, where nothing is
// shared.) A producer's thread issues 8 copies a slice, and one of them 1 to 6 boxes. The engine before this one, 128 x
// 256 in each block alone: 1024 cycles, 128 bytes a cycle of shared memory; 48 KB of L2, 85 FLOP a byte, 48 bytes a
// cycle.
//
// The ring. Place s has two barriers in each block.
// full[s]: 129 arrivals and 24,576 bytes. The 128 producers of the block arrive when their copies of A have ended; the
// first of them arrives once more, expecting B's bytes. They come from its own boxes and, where the tiles share B, from
// those of the other block, each of which sends half of B to both. Bytes may come before the arrival that expects them:
// the phase cannot end without it.
// empty[s]: 8 arrivals, one for each warp of the consuming group of both blocks, when its products have read the place.
// Producers of either block wait for it before they write: what they send, they write into both.
// So both blocks must take the same slices in the same order. They do: both take the same pairs (TileQueue), and a
// pair's tiles have the same number of slices in both, rows that are not there being zeros. Where B is not shared each
// block sends all of it to itself, under the same barriers.
//
// Turns. A barrier tells the phase that goes on from the one before it, and from no other: who waits for a place must
// know that the place's slice before that has come. Producers and a group within its tile do know it. A group that
// begins a tile waits for seen[g] of the other group: 4 arrivals, one for each warp, when it has seen its last slice.
// For the same reason no lane may be left waiting when its warp arrives for it: they meet first.
//
// The queue. The first thread of the cluster counts pairs out, one ahead of the producers, and tells both blocks.
// given[q]: its one arrival, after the number is written. read[q], of the first block: 24 arrivals, one for each warp
// of both, before the place gets another number. Every warp takes every number, and stops at the first that is no pair.
// A consumer takes number i when it has stored its last tile before, i - 2 or i - 1, for which it needs slices of tiles
// before i alone. With four places the thread that counts out number i + 1, before it produces tile i, waits for
// readers of number i - 3. So nobody waits in a circle.
//
// Proxies. Copies of A are ordinary (generic) writes, products and boxes are not (async proxy). A consumer that has
// waited for a place says fence.proxy.async, then multiplies. Lines that it clears itself (clear_steps) it fences, and
// the group meets, before it multiplies. The place goes back when the products that read it have ended
// (wgmma.wait_group).
//
// Ends. Barriers are made, and the cluster meets, before anyone writes to the other block. It meets again when all
// tiles are stored: until then the other block may send boxes, numbers and arrivals here.
//
// tests/simt watches each of these rules, in random orders (shared_space.h, bulk_copies.h).
#pragma once

#include <cstdint>

#include "experts/cuda/hopper/cluster_tiles.h"
#include "experts/cuda/hopper/gathered_lines.h"
#include "experts/cuda/hopper/wgmma.h"

namespace orthant::cuda {

inline constexpr int slice_stages = 4, consumer_groups = 2, cluster_blocks = 2;
inline constexpr int pingpong_threads = (1 + consumer_groups) * warpgroup_threads;
inline constexpr int group_warps = warpgroup_threads / warp_threads;
inline constexpr int slice_a_bytes = tile_rows * line_bytes, slice_b_bytes = wgmma_columns * line_bytes;
inline constexpr int stage_bytes = slice_a_bytes + slice_b_bytes;

// Slices on their way. Producers and consumers each count them, those of tiles of the other group too.
class Slices {
 public:
  static constexpr int bytes = slice_stages * stage_bytes, barrier_bytes = slice_stages * 16 + consumer_groups * 8;

  // memory, barriers: addresses of so many bytes of shared memory; the first a multiple of 1024.
  __device__ Slices(std::uint32_t memory, std::uint32_t barriers) : memory_(memory), barriers_(barriers) {}

  // By one thread, before the cluster meets.
  __device__ void make_barriers() const {
    for (unsigned stage = 0; stage < slice_stages; ++stage) {
      make_barrier(full(stage), warpgroup_threads + 1);
      make_barrier(empty(stage), cluster_blocks * group_warps);
    }
    for (unsigned group = 0; group < consumer_groups; ++group) {
      make_barrier(seen(group), group_warps);
    }
  }

  // Producers: the place of the next slice, free in both blocks; its barrier for B's bytes, which one thread arms; and
  // on to the next, when this thread has started its copies.
  __device__ std::uint32_t free_place() const {
    wait_for_phase(empty(stage()), (count_ / slice_stages + 1) & 1);
    return place();
  }
  __device__ std::uint32_t expect_boxes() const {
    arrive_expecting(full(stage()), slice_b_bytes);
    return full(stage());
  }
  __device__ void pass_on() {
    arrive_after_copies(full(stage()));
    ++count_;
  }

  // Consumers: tile number `turn` of both groups together may begin: the slices of those before have come. And: so have
  // this one's.
  __device__ void begin_tile(unsigned turn) const {
    if (turn > 0) {
      wait_for_phase(seen((turn - 1) % consumer_groups), (turn - 1) / consumer_groups & 1);
    }
  }
  __device__ void end_tile(unsigned turn) const {
    __syncwarp();  // no lane waits any more, if there was no product to meet at
    if (lane() == 0) {
      arrive_in_cluster(cluster_address(seen(turn % consumer_groups), cluster_rank()));
    }
  }
  // Consumers: the next slice, for multiply_later. When products that read it are done, its place is given back, in
  // order. ago: 1 for the last slice, 2 for the one before.
  __device__ std::uint32_t next_slice() {
    wait_for_phase(full(stage()), count_ / slice_stages & 1);
    fence_async_proxy();
    const std::uint32_t slice = place();
    ++count_;
    return slice;
  }
  __device__ void give_back(unsigned ago) const {
    if (lane() < cluster_blocks) {  // a lane for each block
      arrive_in_cluster(cluster_address(empty((count_ - ago) % slice_stages), static_cast<unsigned>(lane())));
    }
  }
  // So many are the other group's.
  __device__ void skip(int slices) { count_ += static_cast<unsigned>(slices); }

 private:
  __device__ unsigned stage() const { return count_ % slice_stages; }
  __device__ std::uint32_t place() const { return memory_ + stage() * stage_bytes; }
  __device__ std::uint32_t full(unsigned stage) const { return barriers_ + stage * 16; }
  __device__ std::uint32_t empty(unsigned stage) const { return full(stage) + 8; }
  __device__ std::uint32_t seen(unsigned group) const { return barriers_ + slice_stages * 16 + group * 8; }

  std::uint32_t memory_, barriers_;
  unsigned count_ = 0;
};

// Numbers of pairs on their way to every warp of both blocks.
class TileQueue {
 public:
  static constexpr int places = 4, bytes = places * 24;

  // address: of `bytes` of shared memory, aligned to 8.
  __device__ explicit TileQueue(std::uint32_t address) : address_(address) {}

  __device__ void make_barriers() const {
    for (unsigned place = 0; place < places; ++place) {
      make_barrier(given_at(place), 1);
      make_barrier(read_at(place), cluster_blocks * pingpong_threads / warp_threads);
    }
  }

  // The first thread of the cluster, and no other.
  __device__ void give(const Schedule& schedule) {
    if (given_ == all) {
      return;
    }
    const unsigned place = given_ % places;
    wait_for_phase(read_at(place), (given_ / places + 1) & 1);
    int number = atomicAdd(schedule.counter(), 1);
    const bool more = number < schedule.first()[schedule.experts];
    number = more ? number : -1;
    for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
      store_in_cluster(cluster_address(address_ + place * 4, rank), number);
      arrive_in_cluster<true>(cluster_address(given_at(place), rank));
    }
    given_ = more ? given_ + 1 : all;
  }

  // How many; `all` when the last number, -1, is among them.
  __device__ unsigned given() const { return given_; }

  // The next number, or -1: all lanes of a warp.
  __device__ int take() {
    const unsigned place = taken_ % places;
    wait_for_phase<true>(given_at(place), taken_ / places & 1);
    const int number = load_shared(address_ + place * 4);
    __syncwarp();
    if (lane() == 0) {
      arrive_in_cluster(cluster_address(read_at(place), 0));
    }
    ++taken_;
    return number;
  }
  // Numbers that this warp has taken.
  __device__ unsigned taken() const { return taken_; }

 private:
  __device__ std::uint32_t given_at(unsigned place) const { return address_ + places * 8 + place * 8; }
  __device__ std::uint32_t read_at(unsigned place) const { return address_ + places * 16 + place * 8; }

  std::uint32_t address_;
  static constexpr unsigned all = 0xFFFFFFFFu;
  unsigned given_ = 0, taken_ = 0;
};

// Steps from `left` on of a slice of B by steps, to zeros, before the group multiplies: boxes end where tensors end,
// and this tile's sum ends before.
__device__ inline void clear_steps(std::uint32_t slice_b, int left, unsigned barrier) {
#pragma unroll 1
  for (int line = my_line(); line < wgmma_columns; line += line_step) {
    if (line % slice_depth >= left) {
      store_zeros(slice_b + line * line_bytes + my_piece() * 16);
    }
  }
  fence_async_proxy();
  group_sync(static_cast<int>(barrier));
}

// Consumers: sums = tile number `turn` of both groups together, whose first 64 rows are sums[0], of the next slices for
// k steps. exact: B's boxes may hold more than k steps.
template <bool a_by_rows, bool b_by_rows, bool exact>
__device__ inline void multiply_slices(WgmmaSums (&sums)[2], Slices& slices, unsigned turn, int k) {
#pragma unroll
  for (int i = 0; i < held_sums; ++i) {
    sums[0][i] = sums[1][i] = 0.0f;
  }
  const int count = slices_of(k);
  slices.begin_tile(turn);
  for (int number = 0; number < count; ++number) {
    const std::uint32_t slice = slices.next_slice();
    if (exact && number == count - 1 && k % slice_depth != 0) {
      clear_steps(slice + slice_a_bytes, k % slice_depth, 1 + turn % consumer_groups);
    }
    const std::uint64_t a = wgmma_operand(slice, a_by_rows), b = wgmma_operand(slice + slice_a_bytes, b_by_rows);
    constexpr std::uint64_t lower = 64 * line_bytes / 16;  // from rows 0 to 63 to the others, either way
    hold(sums[0]);
    hold(sums[1]);
    begin_products();
#pragma unroll
    for (int step = 0; step < slice_depth; step += 16) {
      multiply_later<a_by_rows, b_by_rows>(sums[0], advanced(a, a_by_rows, step), advanced(b, b_by_rows, step));
      multiply_later<a_by_rows, b_by_rows>(sums[1], advanced(a + lower, a_by_rows, step), advanced(b, b_by_rows, step));
    }
    end_products();
    wait_for_products<1>();
    hold(sums[0]);
    hold(sums[1]);
    if (number > 0) {
      slices.give_back(2);
    }
  }
  slices.end_tile(turn);
  wait_for_products<0>();
  hold(sums[0]);
  hold(sums[1]);
  if (count > 0) {
    slices.give_back(1);
  }
}

}  // namespace orthant::cuda
