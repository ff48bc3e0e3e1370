// Hopper's matrix instructions for a warp group (four warps), and what feeds them: barriers in shared memory, copies
// that arrive at them, registers moved between warp groups. Each is one instruction of the PTX ISA. sm_90a only.
//
// Which thread holds what of 64 x 256 sums ("Register Fragments for wgmma.mma_async.m64nNk16"), with warp w of the
// group, g = lane / 4, t = lane % 4: sums[4 j + 2 h + i] is row 16 w + g + 8 h, column 8 j + 2 t + i.
//
// On the CPU the same is done by tests/simt/warpgroup.h, which decodes descriptors by itself and lets copies end late.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"
#include "experts/cuda/hopper/wgmma_layout.h"

namespace orthant::cuda {

inline constexpr int warpgroup_threads = 128;

using WgmmaSums = float[128];

// Of shared memory, as the instructions below take it.
__device__ inline std::uint32_t shared_address(const void* p) {
#if defined(ORTHANT_SIMT)
  return simt::shared_address(p);
#else
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
#endif
}

// --- barriers: 8 bytes each, aligned to 8. A phase ends with its `count`th arrival, and what arrived before is seen.
__device__ inline void make_barrier(std::uint32_t barrier, unsigned count) {
#if defined(ORTHANT_SIMT)
  simt::make_barrier(barrier, count);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count) : "memory");
#endif
}

__device__ inline void arrive(std::uint32_t barrier) {
#if defined(ORTHANT_SIMT)
  simt::arrive(barrier);
#else
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}

// Until the phase of this parity has ended: 0 for the first. The one before the first has ended, of parity 1.
__device__ inline void wait_for_phase(std::uint32_t barrier, unsigned parity) {
#if defined(ORTHANT_SIMT)
  simt::wait_for_phase(barrier, parity);
#else
  unsigned ended;
  do {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}\n"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (ended == 0);
#endif
}

// --- copies
// 16 bytes from global to shared memory, both aligned; zeros where not `there`, and then `from` is not read.
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

// Between a wait for copied (or stored) shared memory and its use by multiply_later: that reads past the caches that
// ordinary accesses and these copies go through (the ISA's generic and async proxies).
__device__ inline void fence_async_proxy() {
#if defined(ORTHANT_SIMT)
  simt::async_proxy_fence();
#else
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
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

// --- products. All threads of the warp group make the same calls: begin_products, multiply_later once or more,
// end_products, and wait_for_products before sums are touched or operands overwritten.
__device__ inline void begin_products() {
#if defined(ORTHANT_SIMT)
  simt::wgmma_fence();
#else
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}

__device__ inline void end_products() {
#if defined(ORTHANT_SIMT)
  simt::wgmma_commit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}

// Until at most `left` of the last end_products' are going on.
template <int left>
__device__ inline void wait_for_products() {
#if defined(ORTHANT_SIMT)
  simt::wgmma_wait(left);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(left) : "memory");
#endif
}

// The compiler moves no access of the sums across this.
__device__ inline void hold([[maybe_unused]] WgmmaSums& sums) {
#if !defined(ORTHANT_SIMT)
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    asm volatile("" : "+f"(sums[i])::"memory");
  }
#endif
}

// sums [64, 256] += a [64, 16] b [16, 256]. Operands by wgmma_layout.h, each by rows or by steps.
template <bool a_by_rows, bool b_by_rows>
__device__ inline void multiply_later(WgmmaSums& sums, std::uint64_t a, std::uint64_t b) {
#if defined(ORTHANT_SIMT)
  simt::wgmma(sums, 256, a, b, !a_by_rows, !b_by_rows);
#else
#define ORTHANT_SUMS_8(i)                                                                                       \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define ORTHANT_SUMS_32(i) ORTHANT_SUMS_8(i), ORTHANT_SUMS_8(i + 8), ORTHANT_SUMS_8(i + 16), ORTHANT_SUMS_8(i + 24)
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, "
      "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
      "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
      "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, 1, 1, 1, %130, %131;\n"
      : ORTHANT_SUMS_32(0), ORTHANT_SUMS_32(32), ORTHANT_SUMS_32(64), ORTHANT_SUMS_32(96)
      : "l"(a), "l"(b), "n"(a_by_rows ? 0 : 1), "n"(b_by_rows ? 0 : 1));
#undef ORTHANT_SUMS_32
#undef ORTHANT_SUMS_8
#endif
}

}  // namespace orthant::cuda
