// What feeds Hopper's matrix units: barriers in shared memory, clusters of blocks, copies, and registers moved between
// warp groups. Each is one instruction of the PTX ISA (or two that belong together). sm_90a only.
//
// On the CPU the same is done by tests/simt/warpgroup.h and bulk_copies.h, which let copies end late and look for what
// a protocol forgets.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/device/cuda/device_math.h"

namespace orthant::cuda {

inline constexpr int warpgroup_threads = 128;

// Of shared memory, as the instructions below take it.
__device__ inline std::uint32_t shared_address(const void* p) {
#if defined(ORTHANT_SIMT)
  return simt::shared_address(p);
#else
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
#endif
}

// --- clusters
// Of this block in its cluster.
__device__ inline unsigned cluster_rank() {
#if defined(ORTHANT_SIMT)
  return simt::cluster_rank();
#else
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
#endif
}

// What lies at this address in the block of that rank, for arrive_in_cluster and store_in_cluster.
__device__ inline std::uint32_t cluster_address(std::uint32_t address, unsigned rank) {
#if defined(ORTHANT_SIMT)
  return simt::cluster_address(address, rank);
#else
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(rank));
  return there;
#endif
}

// All threads of the cluster: what they have written is seen by all, barriers that were made included.
__device__ inline void cluster_sync() {
#if defined(ORTHANT_SIMT)
  simt::cluster_sync();
#else
  asm volatile(
      "fence.mbarrier_init.release.cluster;\n"
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
#endif
}

__device__ inline int load_shared(std::uint32_t address) {
#if defined(ORTHANT_SIMT)
  return static_cast<int>(simt::load_shared(address));
#else
  int value;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(value) : "r"(address) : "memory");
  return value;
#endif
}
__device__ inline void store_in_cluster(std::uint32_t address, int value) {
#if defined(ORTHANT_SIMT)
  simt::store_in_cluster(address, static_cast<std::uint32_t>(value));
#else
  asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
#endif
}

// --- barriers: 8 bytes each, aligned to 8. A phase ends with its `count`th arrival, when all bytes that arrivals
// expect have come; what arrived before is seen by who has waited.
__device__ inline void make_barrier(std::uint32_t barrier, unsigned count) {
#if defined(ORTHANT_SIMT)
  simt::make_barrier(barrier, count);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count) : "memory");
#endif
}

__device__ inline void arrive_expecting(std::uint32_t barrier, unsigned bytes) {
#if defined(ORTHANT_SIMT)
  simt::arrive_expecting(barrier, bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// barrier: a cluster_address. telling: what this thread wrote is seen by threads of that block which wait in_cluster.
// That costs a fence of all of its accesses to memory; without it only what it read, and products that it waited for,
// are known to be over.
template <bool telling = false>
__device__ inline void arrive_in_cluster(std::uint32_t barrier) {
#if defined(ORTHANT_SIMT)
  simt::arrive_in_cluster(barrier);
#else
  if constexpr (telling) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
  } else {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
  }
#endif
}

// Until the phase of this parity of the block's own barrier has ended: 0 for the first. The one before the first has
// ended, of parity 1. in_cluster: what threads of the other block did before they arrived is seen too.
template <bool in_cluster = false>
__device__ inline void wait_for_phase(std::uint32_t barrier, unsigned parity) {
#if defined(ORTHANT_SIMT)
  simt::wait_for_phase(barrier, parity);
#else
  unsigned ended;
  do {
    if constexpr (in_cluster) {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2;\n"
          "selp.u32 %0, 1, 0, ended;\n"
          "}\n"
          : "=r"(ended)
          : "r"(barrier), "r"(parity)
          : "memory");
    } else {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 ended, [%1], %2;\n"
          "selp.u32 %0, 1, 0, ended;\n"
          "}\n"
          : "=r"(ended)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
  } while (ended == 0);
#endif
}

// The threads of a warp group. number: 1 to 15, one for each group.
__device__ inline void group_sync(int number) {
#if defined(ORTHANT_SIMT)
  simt::named_barrier(number, warpgroup_threads);
#else
  asm volatile("bar.sync %0, %1;\n" ::"r"(number), "n"(warpgroup_threads) : "memory");
#endif
}

// --- copies to shared memory
// 16 bytes, both aligned; zeros where not `there`, and then `from` is not read.
__device__ inline void start_copy(std::uint32_t to, const void* from, bool there) {
#if defined(ORTHANT_SIMT)
  simt::copy_later(to, from, there);
#else
  const unsigned bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
}

// This thread arrives when all its copies so far have ended.
__device__ inline void arrive_after_copies(std::uint32_t barrier) {
#if defined(ORTHANT_SIMT)
  simt::arrive_after_copies(barrier);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
#endif
}

// The box of a tensor of three dimensions from element (x, y, z) on, zeros where there is none; its bytes come for the
// barrier. both: to both blocks of a cluster of two, at the same addresses and for the same barrier of each.
__device__ inline void load_box(std::uint32_t to, std::uint32_t barrier, const CUtensorMap& map, int x, int y, int z,
                                bool both) {
#if defined(ORTHANT_SIMT)
  simt::load_box(to, barrier, &map, x, y, z, both ? 3 : 0);
#else
  if (both) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(static_cast<unsigned short>(3))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2];\n" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
  }
#endif
}

// Between ordinary accesses to shared memory (those of start_copy included) and bulk copies or products that read it:
// by the thread that wrote, before who reads is told; or by the reader, once it has waited for copies.
__device__ inline void fence_async_proxy() {
#if defined(ORTHANT_SIMT)
  simt::async_proxy_fence();
#else
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

// Ordinary stores, of which the above speaks.
__device__ inline void store_zeros(std::uint32_t to) {
#if defined(ORTHANT_SIMT)
  simt::store_zeros(to);
#else
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};\n" ::"r"(to), "r"(0) : "memory");
#endif
}
// Four 8 x 8 matrices of bf16: lane i names row i % 8 of matrix i / 8, and holds of each (i / 4, 2 (i % 4)) and its
// right neighbour in one register. All lanes of the warp call.
__device__ inline void store_matrices(std::uint32_t row, const std::uint32_t (&r)[4]) {
#if defined(ORTHANT_SIMT)
  simt::store_matrices(row, r);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// --- copies to global memory, of boxes as above; what lies outside of the tensor is left out. In groups of this
// thread.
__device__ inline void store_box(const CUtensorMap& map, std::uint32_t from, int x, int y, int z) {
#if defined(ORTHANT_SIMT)
  simt::store_box(&map, from, x, y, z);
#else
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n" ::"l"(&map),
               "r"(from), "r"(x), "r"(y), "r"(z)
               : "memory");
#endif
}
__device__ inline void end_stores() {
#if defined(ORTHANT_SIMT)
  simt::end_stores();
#else
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
#endif
}
// Until all but the last `left` groups have read their shared memory.
template <int left>
__device__ inline void wait_for_stores() {
#if defined(ORTHANT_SIMT)
  simt::wait_for_stores(left);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(left) : "memory");
#endif
}

// --- registers of a thread, all threads of a warp group: from the other groups, or for them. registers: 24 to 240, a
// multiple of 8.
template <int registers>
__device__ inline void take_registers() {
#if !defined(ORTHANT_SIMT)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(registers));
#endif
}
template <int registers>
__device__ inline void give_registers() {
#if !defined(ORTHANT_SIMT)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(registers));
#endif
}

// x, of which the compiler does not know that it is the same each time: what is made of it is not kept in registers.
__device__ inline int forgotten(int x) {
#if !defined(ORTHANT_SIMT)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

}  // namespace orthant::cuda
