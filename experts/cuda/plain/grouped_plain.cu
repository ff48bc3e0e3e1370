#include "experts/cuda/plain/grouped_plain.h"

#include "core/device/cuda/gemm_tile.h"

namespace orthant::cuda {
namespace {

__host__ __device__ std::int64_t tiles(std::int64_t size) {
  return (size + tile_edge - 1) / tile_edge;
}

// One block a tile. How many tiles an expert has is known on the device only, so for nt and nn there are blocks for the
// most that there can be, and each finds its expert by counting; those left over end at once.
template <class In, class Out>
__global__ void grouped_tiles(GroupedProblem p) {
  const bool tn = p.layout == GroupedLayout::tn;
  const std::int64_t across = tiles(p.n);
  std::int64_t expert = 0, row_tile = blockIdx.x / across;
  RowRange rows = rows_of(p, 0);
  if (tn) {
    expert = row_tile / tiles(p.m);
    row_tile %= tiles(p.m);
    rows = rows_of(p, expert);
  } else {
    for (; row_tile >= tiles(rows.end - rows.begin); rows = rows_of(p, expert)) {
      row_tile -= tiles(rows.end - rows.begin);
      if (++expert == p.experts) {
        return;
      }
    }
  }
  const Group group = group_of(p, expert, rows);
  const RowStrides strides = strides_of(p);
  const TileOperand<In> a{static_cast<const In*>(p.a) + group.a, strides.a, !tn, group.m};
  const TileOperand<In> b{static_cast<const In*>(p.b) + group.b, strides.b, p.layout == GroupedLayout::nt, group.n};
  multiply_tile(a, b, group.k, row_tile * tile_edge, blockIdx.x % across * tile_edge, static_cast<Out*>(p.c) + group.c,
                strides.c, p.beta != 0);
}

}  // namespace

void grouped_plain(const GroupedProblem& p, DType in, DType out, const StreamRef& stream) {
  // Each expert's last tile may be a part: at most one tile an expert more than the rows alone would need.
  const std::int64_t row_tiles = p.layout == GroupedLayout::tn
                                     ? p.experts * tiles(p.m)
                                     : p.rows / tile_edge + std::min<std::int64_t>(p.experts, p.rows);
  const Grid grid{blocks_for(row_tiles * tiles(p.n), 1), tile_threads};
  if (in == DType::f32) {
    launch(out == DType::f32 ? grouped_tiles<float, float> : grouped_tiles<float, bf16>, grid, stream, p);
  } else {
    launch(out == DType::f32 ? grouped_tiles<bf16, float> : grouped_tiles<bf16, bf16>, grid, stream, p);
  }
}

}  // namespace orthant::cuda
