// A tile of sums in the registers of a warp group, on its way out: rounded, taken in parts of 16 x 16, and put into
// boxes in shared memory that bulk stores read. A warp stores strips of 16 rows by itself.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/device/cuda/device_math.h"
#include "experts/cuda/hopper/cluster_tiles.h"
#include "experts/cuda/hopper/tensor_map.h"
#include "experts/cuda/hopper/wgmma.h"

namespace orthant::cuda {

inline constexpr int strip_rows = 16, step_columns = 16, box_columns = 32;
inline constexpr int tile_steps = wgmma_columns / step_columns;
inline constexpr int box_bytes = strip_rows * box_columns * 2, boxes_at_once = 3, box_turns = 2;
inline constexpr int warp_box_bytes = box_turns * boxes_at_once * box_bytes;

// Of [rows, groups, width].
inline CUtensorMap output_map(const void* data, std::int64_t width, std::int64_t groups, std::int64_t rows) {
  return tensor_map(data, {width, groups, rows}, {box_columns, 1, strip_rows});
}

struct OutputMaps {
  CUtensorMap wide, narrow;
};

// Two neighbours in a register.
__device__ inline std::uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ inline float2 unpack_pair(std::uint32_t bits) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u));
}
__device__ inline std::uint32_t load_pair(const bf16* from) {
  const auto pair = *reinterpret_cast<const Vector<bf16, 2>*>(from);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ inline void store_pair(bf16* to, std::uint32_t bits) {
  Vector<bf16, 2> pair;
  memcpy(&pair, &bits, sizeof pair);
  *reinterpret_cast<Vector<bf16, 2>*>(to) = pair;
}

// The tile, rounded: pair[strip][2 j + h] is that of row g + 8 h, columns 8 j + 2 t and its neighbour.
struct RoundedTile {
  static constexpr int pairs = held_sums / 2;
  std::uint32_t pair[2][pairs];

  __device__ explicit RoundedTile(const WgmmaSums (&sums)[2]) {
#pragma unroll
    for (int i = 0; i < 2 * pairs; ++i) {
      pair[i / pairs][i % pairs] = pack_pair(sums[i / pairs][i % pairs * 2], sums[i / pairs][i % pairs * 2 + 1]);
    }
  }
  // 16 x 16 of a strip: r[m] is the pair of row_of_pair(m), column_of_pair(m). Registers have no computed index.
  __device__ void take(std::uint32_t (&r)[4], int strip, int step) const {
#pragma unroll
    for (int known = 0; known < 2 * tile_steps; ++known) {
      if (known == strip * tile_steps + step) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          r[m] = pair[known / tile_steps][known % tile_steps * 4 + m];
        }
      }
    }
  }
};
__device__ inline int row_of_pair(int m) {
  return lane() / 4 + m % 2 * 8;
}
__device__ inline int column_of_pair(int m) {
  return m / 2 * 8 + lane() % 4 * 2;
}

// The strips of this warp. take(strip, row, left): its first row among all packed rows, and how many are there from
// then on, at least one.
template <class Take>
__device__ inline void for_each_strip(const ClusterTile& tile, Take&& take) {
#pragma unroll 1
  for (int strip = 0; strip < 2; ++strip) {
    const int row = strip * 64 + warp() % 4 * strip_rows;
    if (row < tile.rows_left()) {
      take(strip, tile.first_row() + row, tile.rows_left() - row);
    }
  }
}

// A warp's boxes in shared memory, on their way to tensors: those of one turn are written while those of the turn
// before are read.
class Boxes {
 public:
  // memory: address of warp_box_bytes of this warp's own, a multiple of 512.
  __device__ explicit Boxes(std::uint32_t memory) : memory_(memory) {}

  __device__ void begin() const {
    wait_for_stores<box_turns - 1>();
    __syncwarp();
  }
  // 16 x 16, the first or second half of a box. 64-byte swizzle: tensor_map.
  __device__ void put(int box, int half, const std::uint32_t (&r)[4]) const {
    const int row = lane() % 16, piece = half * 2 + lane() / 16;
    store_matrices(at(box) + static_cast<std::uint32_t>(row * 64 + ((piece ^ (row >> 1 & 3)) << 4)), r);
  }
  // The turn's boxes are written. send(): by one lane, stores them.
  template <class Send>
  __device__ void end(Send&& send) {
    fence_async_proxy();
    __syncwarp();
    if (lane() == 0) {
      send();
      end_stores();
    }
    ++turn_;
  }
  __device__ std::uint32_t at(int box) const {
    return memory_ + static_cast<std::uint32_t>((turn_ % box_turns * boxes_at_once + box) * box_bytes);
  }

 private:
  std::uint32_t memory_;
  int turn_ = 0;
};

}  // namespace orthant::cuda
