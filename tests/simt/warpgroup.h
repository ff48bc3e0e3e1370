// What multiprocessors do beside their threads, for the CPU: copies that end later (core/device/cuda/tensor_core.h),
// and on Hopper barriers in shared memory that count arrivals and bytes, clusters of blocks, and matrix products of a
// warp group (experts/cuda/hopper/). Boxes of tensors: bulk_copies.h. Meanings are those of the PTX ISA, sections on
// mbarrier, cp.async, and wgmma.mma_async with its shared memory layouts.
//
// What must not be seen yet is NaN: the place of a copy that has not ended, and sums before they are waited for. What
// the ISA asks for and a CPU would not miss is checked, and ends the launch with an error: see each function.
#pragma once

#include <cstdint>
#include <source_location>

namespace orthant::simt {

using Where = std::source_location;

// Addresses of shared memory, as instructions have them. Dynamic memory begins at 128, so that it is aligned to what
// launch.h promises and no better; above 24 bits an address names its block, of whatever rank.
std::uint32_t shared_address(const void* p, const Where& where = Where::current());

// --- barriers (mbarrier): a phase ends with the count of arrivals that it was made with, and with all bytes that were
// expected (its tx-count, which may be below zero in between).
void make_barrier(std::uint32_t barrier, unsigned count, const Where& where = Where::current());
void arrive(std::uint32_t barrier, const Where& where = Where::current());
// Until the phase of this parity has ended; that before the first counts as ended, of parity 1.
void wait_for_phase(std::uint32_t barrier, unsigned parity, const Where& where = Where::current());

void arrive_expecting(std::uint32_t barrier, unsigned bytes, const Where& where = Where::current());

// --- clusters. The functions above and below take the block's own addresses, those here any block's.
unsigned cluster_rank();
std::uint32_t cluster_address(std::uint32_t address, unsigned rank, const Where& where = Where::current());  // mapa
void arrive_in_cluster(std::uint32_t barrier, const Where& where = Where::current());
std::uint32_t load_shared(std::uint32_t address, const Where& where = Where::current());
void store_in_cluster(std::uint32_t address, std::uint32_t value, const Where& where = Where::current());
void cluster_sync(const Where& where = Where::current());                            // barrier.cluster.arrive, .wait
void named_barrier(int number, int threads, const Where& where = Where::current());  // bar.sync

// --- copies (cp.async) of 16 bytes, aligned; of zeros where `there` is false.
void copy_later(std::uint32_t to, const void* from, bool there, const Where& where = Where::current());
// One arrival when all copies of this thread so far have ended (cp.async.mbarrier.arrive.noinc).
void arrive_after_copies(std::uint32_t barrier, const Where& where = Where::current());

// The same to any shared memory, in groups (cp.async.commit_group, .wait_group): a group ends when it is waited for.
void copy_later(void* to, const void* from, const Where& where = Where::current());  // zeros where `from` is null
void end_copies();
// Until at most `left` of this thread's last groups are going on.
void wait_for_copies(int left);

// Where a row that a lane names for ldmatrix is not aligned to 16 bytes: an error.
void check_matrix_row(const void* row, const Where& where = Where::current());

// --- products (wgmma), in order: async_proxy_fence after each wait for what was copied, wgmma_fence, products, commit,
// wait. All threads of a group of four warps make the same calls.
void async_proxy_fence();
void wgmma_fence(const Where& where = Where::current());
// sums [columns / 8][2][2] += the thread's part of a [64, 16] b [16, columns], bf16, named by matrix descriptors with
// 128-byte swizzle. transposed: by m or n, not by k.
void wgmma(float* sums, int columns, std::uint64_t a, std::uint64_t b, bool transposed_a, bool transposed_b,
           const Where& where = Where::current());
void wgmma_commit(const Where& where = Where::current());
// Until at most `left` of the last commits' products are going on. What they read must be as it was.
void wgmma_wait(int left, const Where& where = Where::current());

}  // namespace orthant::simt
