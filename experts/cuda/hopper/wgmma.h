// Hopper's matrix instructions for a warp group (four warps). Each is one instruction of the PTX ISA. sm_90a only.
//
// Which thread holds what of 64 x 192 sums ("Register Fragments for wgmma.mma_async.m64nNk16"), with warp w of the
// group, g = lane / 4, t = lane % 4: sums[4 j + 2 h + i] is row 16 w + g + 8 h, column 8 j + 2 t + i.
//
// On the CPU the same is done by tests/simt/warpgroup.h, which decodes descriptors by itself.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"
#include "experts/cuda/hopper/wgmma_layout.h"

namespace orthant::cuda {

inline constexpr int wgmma_columns = 192, held_sums = 64 * wgmma_columns / 128;

using WgmmaSums = float[held_sums];

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
  for (int i = 0; i < held_sums; ++i) {
    asm volatile("" : "+f"(sums[i])::"memory");
  }
#endif
}

// sums [64, 192] += a [64, 16] b [16, 192]. Operands by wgmma_layout.h, each by rows or by steps.
template <bool a_by_rows, bool b_by_rows>
__device__ inline void multiply_later(WgmmaSums& sums, std::uint64_t a, std::uint64_t b) {
#if defined(ORTHANT_SIMT)
  simt::wgmma(sums, wgmma_columns, a, b, !a_by_rows, !b_by_rows);
#else
#define ORTHANT_SUMS_8(i)                                                                                       \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define ORTHANT_SUMS_32(i) ORTHANT_SUMS_8(i), ORTHANT_SUMS_8(i + 8), ORTHANT_SUMS_8(i + 16), ORTHANT_SUMS_8(i + 24)
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, 1, 1, 1, %98, %99;\n"
      : ORTHANT_SUMS_32(0), ORTHANT_SUMS_32(32), ORTHANT_SUMS_32(64)
      : "l"(a), "l"(b), "n"(a_by_rows ? 0 : 1), "n"(b_by_rows ? 0 : 1));
#undef ORTHANT_SUMS_32
#undef ORTHANT_SUMS_8
#endif
}

}  // namespace orthant::cuda
