// The matrix units of Ampere and later, one warp at a time: 16 x 8 x 16 products of bf16 with fp32 sums, fragments read
// from shared memory, and copies from global to shared memory that run beside the arithmetic.
//
// Which lane holds what (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4, t = lane % 4:
//   a[0..3]: rows g, g + 8, g, g + 8 at k = 2t, 2t + 1, and for the last two 8 further on; two bf16 a register
//   b[0..1]: column g at k = 2t, 2t + 1, and 8 further on
//   c[0..3]: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
//
// On the CPU (tests/simt) the same is done lane by lane; copies end when they are waited for.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/device/cuda/device_math.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {

#if defined(ORTHANT_SIMT)

// What every lane of a warp shows the others, for one collective.
template <class T, int n>
struct Shown {
  T of[32][32][n];  // [warp][lane]
};
// That of the block that runs: one for each type, as a warp is in one collective at a time.
template <class T, int n>
auto& shown_by_lanes() {
  static const char tag = 0;
  return simt::exchange<Shown<T, n>>(&tag).of[warp()];
}

#endif

// c += a b. All lanes of the warp call.
__device__ inline void multiply_matrices(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if defined(ORTHANT_SIMT)
  auto& all = shown_by_lanes<std::uint32_t, 6>();
  for (int i = 0; i < 4; ++i) {
    all[lane()][i] = a[i];
  }
  all[lane()][4] = b[0];
  all[lane()][5] = b[1];
  __syncwarp();
  // The 16 elements of a row or a column: those of register `first` of lanes `from` to `from` + 3, then of `second`.
  const auto line = [&](float* to, int from, int first, int second) {
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t both = all[from + i % 4][i < 4 ? first : second];
      const std::uint32_t bits[2] = {both << 16, both & 0xFFFF0000u};
      std::memcpy(to + 2 * i, bits, sizeof bits);
    }
  };
  float row[2][16], column[2][16];
  for (int i = 0; i < 2; ++i) {
    line(row[i], lane() / 4 * 4, i, i + 2);
    line(column[i], (lane() % 4 * 2 + i) * 4, 4, 5);
  }
  for (int i = 0; i < 4; ++i) {
    float sum = c[i];
    for (int k = 0; k < 16; ++k) {
      sum += row[i / 2][k] * column[i % 2][k];
    }
    c[i] = sum;
  }
  __syncwarp();
#elif defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Four 8 x 8 matrices of bf16 from shared memory: lane i names row i % 8 of matrix i / 8, 16 aligned bytes. Lane l gets
// of each matrix (l / 4, 2 (l % 4)) and its right neighbour; transposed, the elements of the transposed matrix there.
template <bool transposed>
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
#if defined(ORTHANT_SIMT)
  simt::check_matrix_row(row);
  auto& all = shown_by_lanes<const bf16*, 1>();
  all[lane()][0] = static_cast<const bf16*>(row);
  __syncwarp();
  for (int matrix = 0; matrix < 4; ++matrix) {
    bf16 pair[2];
    for (int i = 0; i < 2; ++i) {
      const int outer = lane() / 4, inner = lane() % 4 * 2 + i;
      pair[i] = transposed ? all[matrix * 8 + inner][0][outer] : all[matrix * 8 + outer][0][inner];
    }
    std::memcpy(&r[matrix], pair, sizeof pair);
  }
  __syncwarp();
#elif defined(__CUDA_ARCH__)
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// 16 bytes from global to shared memory, both aligned; zero where `from` is null.
__device__ inline void start_copy(void* to, const void* from) {
#if defined(ORTHANT_SIMT)
  simt::copy_later(to, from);
#elif defined(__CUDA_ARCH__)
  if (from == nullptr) {
    *static_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
  } else {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from) : "memory");
  }
#endif
}

// Ends a group of this thread's copies.
__device__ inline void end_copies() {
#if defined(ORTHANT_SIMT)
  simt::end_copies();
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `left` of this thread's last groups are on their way. Other threads see them after a barrier.
template <int left>
__device__ inline void wait_for_copies() {
#if defined(ORTHANT_SIMT)
  simt::wait_for_copies(left);
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(left) : "memory");
#endif
}

}  // namespace orthant::cuda
