#include "core/device/cuda/gemm_plain.h"

#include "core/device/cuda/gemm_tile.h"

namespace orthant::cuda {
namespace {

// One block a tile, tiles of one row of tiles side by side.
template <class In, class Out>
__global__ void gemm_tiles(GemmProblem p) {
  const std::int64_t across = (p.n + tile_edge - 1) / tile_edge;
  const std::int64_t tile = blockIdx.x;
  const TileOperand<In> a{static_cast<const In*>(p.a), p.transpose_a ? p.m : p.k, !p.transpose_a, p.m};
  const TileOperand<In> b{static_cast<const In*>(p.b), p.transpose_b ? p.k : p.n, p.transpose_b, p.n};
  multiply_tile(a, b, p.k, tile / across * tile_edge, tile % across * tile_edge, static_cast<Out*>(p.c), p.n,
                p.beta != 0);
}

}  // namespace

void gemm_plain(const GemmProblem& p, const StreamRef& stream) {
  const Grid grid{blocks_for(p.m, tile_edge) * blocks_for(p.n, tile_edge), tile_threads};
  if (p.in == DType::f32) {
    launch(p.out == DType::f32 ? gemm_tiles<float, float> : gemm_tiles<float, bf16>, grid, stream, p);
  } else {
    launch(p.out == DType::f32 ? gemm_tiles<bf16, float> : gemm_tiles<bf16, bf16>, grid, stream, p);
  }
}

}  // namespace orthant::cuda
