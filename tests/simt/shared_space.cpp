#include "tests/simt/shared_space.h"

#include <fmt/format.h>

#include <orthant/error.h>

#include <cstring>

#include "tests/simt/engine.h"

namespace orthant::simt {
namespace {

// An address names its block in the bits from here on, as on Hopper (nvcc makes a block's own shared addresses of its
// rank, shifted by 24, too); PTX leaves open how. From 1, so that it shows where they are forgotten.
constexpr int rank_bit = 24;

// A barrier's 64 bits: count, arrivals and bytes that the phase still waits for, parity of the phase, and a mark.
struct BarrierWord {
  std::uint64_t count : 12, pending : 12, parity : 1, mark : 15;
  std::int64_t bytes : 24;
};
constexpr unsigned mark = 0x6B1C;
constexpr std::int64_t most_bytes = (1 << 20) - 1;  // PTX ISA: "tx-count"
static_assert(sizeof(BarrierWord) == 8);

BarrierWord load_barrier(SharedPlace at, const Where& where) {
  BarrierWord word;
  std::memcpy(&word, bytes_at(at), sizeof word);
  if (at.offset % 8 != 0 || word.mark != mark) {
    misuse(fmt::format("there is no barrier at shared address {:#x}", at.offset + shared_begin), where);
  }
  return word;
}

// The phase ends when nothing is waited for.
void settle(SharedPlace at, BarrierWord word) {
  const bool ends = word.pending == 0 && word.bytes == 0;
  if (ends) {
    word.pending = word.count;
    word.parity ^= 1;
  }
  std::memcpy(bytes_at(at), &word, sizeof word);
  if (ends) {
    wake(bytes_at(at));
  }
}

void add_bytes(BarrierWord& word, std::int64_t bytes, const Where& where) {
  const std::int64_t sum = word.bytes + bytes;
  if (sum > most_bytes || sum < -most_bytes) {
    misuse(fmt::format("a barrier waits for {} bytes, of {} at most", sum, most_bytes), where);
  }
  word.bytes = sum;
}

void arrive_at(SharedPlace at, std::int64_t expected, const Where& where) {
  BarrierWord word = load_barrier(at, where);
  add_bytes(word, expected, where);
  if (word.pending == 0) {
    misuse("more arrivals at a barrier than its phase has", where);
  }
  --word.pending;
  settle(at, word);
}

}  // namespace

BlockState& block_state() {
  static thread_local BlockState state;
  if (state.number != block_number()) {
    state.number = block_number();
    const std::size_t blocks = position->cluster_blocks, threads = blocks * position->block_size.x;
    state.threads.assign(threads, {});
    state.blocks.assign(blocks, {});
    for (OneBlock& block : state.blocks) {
      block.pieces.assign((dynamic_shared_size() + 15) / 16, {});
    }
    state.products.resize((threads + group_threads - 1) / group_threads * kept_products);
    for (auto& product : state.products) {
      product.reset();
    }
    state.loads = 0;
  }
  return state;
}

BlockThread& this_thread_of_block() {
  return block_state().threads[thread_number()];
}

std::uint32_t own_window() {
  return (position->cluster_rank + 1u) << rank_bit;
}

SharedPlace shared_place(std::uint32_t address, std::size_t bytes, const Where& where) {
  const std::uint32_t named = address >> rank_bit, local = address & ((1u << rank_bit) - 1);
  const unsigned rank = named - 1;
  if (rank >= position->cluster_blocks || local < shared_begin ||
      local - shared_begin + bytes > dynamic_shared_size()) {
    misuse(fmt::format("shared address {:#x} of {} bytes is outside of the block's {}", address, bytes,
                       dynamic_shared_size()),
           where);
  }
  if (rank != position->cluster_rank) {
    if (cluster_barriers() == 0) {
      misuse("shared memory of another block is used before a cluster barrier: that may not have begun", where);
    }
    if (!block_runs(rank)) {
      misuse("shared memory of another block is used that has ended", where);
    }
  }
  return {rank, local - shared_begin};
}

SharedPlace own_place(std::uint32_t address, std::size_t bytes, const Where& where) {
  if (address >> rank_bit != own_window() >> rank_bit) {
    misuse(fmt::format("shared address {:#x}, where one of the block's own shared memory is wanted", address), where);
  }
  return shared_place(address, bytes, where);
}

std::byte* bytes_at(SharedPlace place) {
  return static_cast<std::byte*>(dynamic_shared_bytes(place.rank)) + place.offset;
}

Piece& piece_at(SharedPlace place) {
  return block_state().blocks[place.rank].pieces[place.offset / 16];
}

void complete_bytes(SharedPlace barrier, std::int64_t bytes, const Where& where) {
  BarrierWord word = load_barrier(barrier, where);
  add_bytes(word, -bytes, where);
  settle(barrier, word);
}

void come_together(const char* function, const Where& where) {
  warp_collective(Collective::barrier, function, ~0u, 0, 0, where);
}

void check_ended_blocks() {
  BlockState& state = block_state();
  if (state.loads > 0) {
    fail("{} bulk copies to shared memory were going on when their blocks ended", state.loads);
  }
  for (unsigned rank = 0; rank < state.blocks.size(); ++rank) {
    for (const std::uint32_t address : state.blocks[rank].barriers) {
      BarrierWord word;
      std::memcpy(&word, bytes_at({rank, address - shared_begin}), sizeof word);
      if (word.mark == mark && word.bytes != 0) {
        fail(
            "the barrier at shared address {:#x} of block {} of a cluster still waits for {} bytes at the end: what "
            "copies bring is not what was expected of them",
            address, rank, std::int64_t{word.bytes});
      }
    }
  }
  for (std::size_t t = 0; t < state.threads.size(); ++t) {
    if (!state.threads[t].stores.empty() || !state.threads[t].store_groups.empty()) {
      fail("thread {} ended before cp.async.bulk.wait_group: its bulk stores may read memory of the next block",
           t % position->block_size.x);
    }
  }
}

std::uint32_t shared_address(const void* p, const Where& where) {
  const auto offset = reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(dynamic_shared_bytes());
  if (offset > dynamic_shared_size()) {
    misuse("the address is not of dynamic shared memory", where);
  }
  return own_window() + static_cast<std::uint32_t>(offset) + shared_begin;
}

void make_barrier(std::uint32_t barrier, unsigned count, const Where& where) {
  const SharedPlace at = own_place(barrier, 8, where);
  const BarrierWord word{.count = count, .pending = count, .parity = 0, .mark = mark, .bytes = 0};
  if (barrier % 8 != 0 || count == 0 || word.count != count) {
    misuse(fmt::format("a barrier for {} arrivals at shared address {:#x}: 1 to 4095, at multiples of 8, are known",
                       count, barrier),
           where);
  }
  std::memcpy(bytes_at(at), &word, sizeof word);
  block_state().blocks[at.rank].barriers.push_back(at.offset + shared_begin);
}

void arrive(std::uint32_t barrier, const Where& where) {
  arrive_at(own_place(barrier, 8, where), 0, where);
}

void arrive_in_cluster(std::uint32_t barrier, const Where& where) {
  arrive_at(shared_place(barrier, 8, where), 0, where);
}

void arrive_expecting(std::uint32_t barrier, unsigned bytes, const Where& where) {
  arrive_at(own_place(barrier, 8, where), bytes, where);
}

void wait_for_phase(std::uint32_t barrier, unsigned parity, const Where& where) {
  const SharedPlace at = own_place(barrier, 8, where);
  while (load_barrier(at, where).parity == parity) {
    sleep(bytes_at(at), "mbarrier.try_wait", where);
  }
  this_thread_of_block().proxy_fenced = false;
}

unsigned cluster_rank() {
  return position->cluster_rank;
}

std::uint32_t cluster_address(std::uint32_t address, unsigned rank, const Where& where) {
  const SharedPlace own = own_place(address, 0, where);
  return own.offset + shared_begin + ((rank + 1) << rank_bit);
}

std::uint32_t load_shared(std::uint32_t address, const Where& where) {
  std::uint32_t value;
  std::memcpy(&value, bytes_at(own_place(address, sizeof value, where)), sizeof value);
  return value;
}

void store_in_cluster(std::uint32_t address, std::uint32_t value, const Where& where) {
  std::memcpy(bytes_at(shared_place(address, sizeof value, where)), &value, sizeof value);
}

void cluster_sync(const Where& where) {
  cluster_barrier("barrier.cluster", where);
}

void named_barrier(int number, int threads, const Where& where) {
  if (number < 1 || number > 15 || threads % 32 != 0) {
    misuse(fmt::format("bar.sync {}, {}: barriers 1 to 15 for whole warps are known", number, threads), where);
  }
  NamedBarrier& barrier = block_state().blocks[position->cluster_rank].named[number];
  const std::uint64_t generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    wake(&barrier);
    return;
  }
  while (barrier.generation == generation) {
    sleep(&barrier, "bar.sync", where);
  }
}

}  // namespace orthant::simt
