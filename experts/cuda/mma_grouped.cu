#include "experts/cuda/mma_grouped.h"

#include "core/cuda/activation_math.h"
#include "experts/cuda/mma_tile.h"

namespace orthant::cuda {
namespace {

constexpr int staged_stride = mma_edge + 4;  // floats; neighbouring rows begin in other banks
constexpr std::size_t shared_bytes = std::size_t{mma_edge} * staged_stride * sizeof(float);
static_assert(shared_bytes >= mma_stage_bytes);

__host__ __device__ std::int64_t parts(std::int64_t size, std::int64_t part) {
  return (size + part - 1) / part;
}

// A tile of an expert's product.
struct Tile {
  std::int64_t expert;
  RowRange rows;        // the expert's, among all packed rows
  std::int64_t row;     // first row of the tile, among the expert's
  std::int64_t column;  // number of the tile's columns
};

// The expert whose row tile has this number when all experts' are counted through; expert -1: there are fewer. Each
// warp finds it by itself: a lane counts the tiles of a run of experts.
__device__ Tile find_tile(const GroupedProblem& p, std::int64_t number, std::int64_t column) {
  const std::int64_t run = parts(p.experts, warp_threads), first = lane() * run;
  const std::int64_t last = first + run < p.experts ? first + run : p.experts;
  std::int64_t mine = 0;
  for (std::int64_t e = first; e < last; ++e) {
    const RowRange rows = rows_of(p, e);
    mine += parts(rows.end - rows.begin, mma_edge);
  }
  std::int64_t before = mine;  // inclusive sums over the lanes
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const std::int64_t other = __shfl_up_sync(all_lanes, before, distance);
    before += lane() >= distance ? other : 0;
  }
  before -= mine;
  const bool here = number >= before && number < before + mine;
  const unsigned found = __ballot_sync(all_lanes, here);
  if (found == 0) {
    return {-1, {0, 0}, 0, 0};
  }
  std::int64_t expert = first, tile = number - before;
  while (here) {
    const RowRange rows = rows_of(p, expert);
    const std::int64_t tiles = parts(rows.end - rows.begin, mma_edge);
    if (tile < tiles) {
      break;
    }
    tile -= tiles;
    ++expert;
  }
  const int holder = __ffs(static_cast<int>(found)) - 1;
  expert = __shfl_sync(all_lanes, expert, holder);
  tile = __shfl_sync(all_lanes, tile, holder);
  return {expert, rows_of(p, expert), tile * mma_edge, column};
}

// The memory row of packed row r, or -1: zeros.
__device__ std::int64_t gathered(const Gather& gather, std::int64_t r) {
  if (gather.source == nullptr) {
    return r;
  }
  const std::int32_t choice = gather.source[r];
  return choice < 0 ? -1 : choice / gather.top_k;
}

// The tile in shared memory, as floats [128][staged_stride].
__device__ float* stage(const MmaSums& sums, bf16* memory) {
  float* const staged = reinterpret_cast<float*>(memory);
  for_each_pair(sums, [&](int row, int column, float low, float high) {
    *reinterpret_cast<float2*>(staged + row * staged_stride + column) = make_float2(low, high);
  });
  __syncthreads();
  return staged;
}

// Eight neighbouring sums of a staged tile.
__device__ void load_eight(float (&to)[8], const float* from) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    to[i] = from[i];
  }
}

// Calls fn(row, piece) for each piece of 8 columns of each row of the tile that exists; all lanes reach fn together.
template <int pieces, class F>
__device__ void for_each_piece(F&& fn) {
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < mma_edge * pieces; item += mma_threads) {
    fn(item / pieces, item % pieces);
  }
}

template <class Out>
__device__ void store_eight(Out* to, const float (&x)[8]) {
  if constexpr (std::is_same_v<Out, float>) {
    store_vector(to, {x[0], x[1], x[2], x[3]});
    store_vector(to + 4, {x[4], x[5], x[6], x[7]});
  } else {
    store_vector(to, x);
  }
}

template <class Out>
__device__ void add_eight(float (&x)[8], const Out* from) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] += to_float(from[i]);
  }
}

// c = or += the tile; `rows` and `columns` of it exist.
template <class Out>
__device__ void store_tile(const float* staged, Out* c, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                           bool accumulate) {
  for_each_piece<mma_edge / 8>([&](int row, int piece) {
    if (row < rows && piece * 8 < columns) {
      Out* const to = c + row * stride + piece * 8;
      float x[8];
      load_eight(x, staged + row * staged_stride + piece * 8);
      if (accumulate) {
        add_eight(x, to);
      }
      store_eight(to, x);
    }
  });
}

// --- what becomes of a tile of rows. columns(n): column tiles; row_of_b(i, tile): which row of b[e] (nt) is the tile's
// column i, or -1.

template <class Out>
struct Plain {
  static __host__ __device__ std::int64_t columns(const GroupedProblem& p) { return parts(p.n, mma_edge); }
  __device__ std::int64_t row_of_b(const GroupedProblem& p, int i, std::int64_t tile) const {
    const std::int64_t column = tile * mma_edge + i;
    return column < p.n ? column : -1;
  }
  __device__ void operator()(const float* staged, const GroupedProblem& p, const Tile& tile) const {
    Out* const c = static_cast<Out*>(p.c) + (tile.rows.begin + tile.row) * p.n + tile.column * mma_edge;
    store_tile(staged, c, p.n, tile.rows.end - tile.rows.begin - tile.row, p.n - tile.column * mma_edge, p.beta != 0);
  }
};

// c = h, and the activation of what was stored. Gated, a tile holds 64 gates and the 64 columns above them, 16 by 16 in
// turns, so that a thread meets both.
template <class Kind>
struct Activate {
  static constexpr int width = Kind::gated ? mma_edge / 2 : mma_edge;  // columns of act
  bf16* act;

  static __host__ __device__ std::int64_t f_of(const GroupedProblem& p) { return Kind::gated ? p.n / 2 : p.n; }
  static __host__ __device__ std::int64_t columns(const GroupedProblem& p) { return parts(f_of(p), width); }
  __device__ std::int64_t row_of_b(const GroupedProblem& p, int i, std::int64_t tile) const {
    if constexpr (Kind::gated) {
      const std::int64_t f = f_of(p), column = tile * width + i / 32 * 16 + i % 16;
      return column < f ? column + (i % 32 < 16 ? 0 : f) : -1;
    } else {
      return tile * width + i < p.n ? tile * width + i : -1;
    }
  }
  __device__ void operator()(const float* staged, const GroupedProblem& p, const Tile& tile) const {
    const std::int64_t f = f_of(p), rows = tile.rows.end - tile.rows.begin - tile.row;
    for_each_piece<width / 8>([&](int row, int piece) {
      const std::int64_t column = tile.column * width + piece * 8, r = tile.rows.begin + tile.row + row;
      if (row >= rows || column >= f) {
        return;
      }
      const float* const from =
          staged + row * staged_stride + (Kind::gated ? piece / 2 * 32 + piece % 2 * 8 : piece * 8);
      float gate[8], up[8], a[8];
      load_eight(gate, from);
      load_eight(up, from + (Kind::gated ? 16 : 0));
      bf16* const h = static_cast<bf16*>(p.c) + r * p.n + column;
      store_vector(h, gate);
      if constexpr (Kind::gated) {
        store_vector(h + f, up);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        a[i] = Kind::value(to_float(from_float<bf16>(gate[i])), to_float(from_float<bf16>(up[i])));
      }
      store_vector(act + r * f + column, a);
    });
  }
};

template <class Kind>
struct Weigh {
  WeightedBackward out;

  static __host__ __device__ std::int64_t columns(const GroupedProblem& p) { return parts(p.n, mma_edge); }
  __device__ std::int64_t row_of_b(const GroupedProblem&, int, std::int64_t) const { return -1; }  // nn has none
  __device__ void operator()(const float* staged, const GroupedProblem& p, const Tile& tile) const {
    constexpr int pieces = mma_edge / 8;
    const std::int64_t f = p.n, n = (Kind::gated ? 2 : 1) * f, rows = tile.rows.end - tile.rows.begin - tile.row;
    for_each_piece<pieces>([&](int row, int piece) {
      const std::int64_t column = tile.column * mma_edge + piece * 8, r = tile.rows.begin + tile.row + row;
      float inner = 0.0f;
      if (row < rows && column < f) {
        const std::int32_t choice = out.source[r];
        const float s = choice < 0 ? 0.0f : out.weight[choice];
        const bf16* const h = static_cast<const bf16*>(out.h) + r * n + column;
        bf16* const dh = static_cast<bf16*>(out.dh) + r * n + column;
        float d[8], gate[8], up[8] = {}, a[8], dgate[8], dup[8];
        load_eight(d, staged + row * staged_stride + piece * 8);
        load_vector(gate, h);
        if constexpr (Kind::gated) {
          load_vector(up, h + f);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const ActivationSlopes slopes = Kind::slopes(gate[i], up[i]);
          inner += d[i] * slopes.value;
          a[i] = s * slopes.value;
          dgate[i] = s * d[i] * slopes.by_gate;
          dup[i] = s * d[i] * slopes.by_up;
        }
        store_vector(static_cast<bf16*>(out.act) + r * f + column, a);
        store_vector(dh, dgate);
        if constexpr (Kind::gated) {
          store_vector(dh + f, dup);
        }
      }
      // A row's 16 pieces are with 16 neighbouring lanes.
#pragma unroll
      for (int distance = pieces / 2; distance > 0; distance /= 2) {
        inner += __shfl_xor_sync(all_lanes, inner, distance);
      }
      if (row < rows && piece == 0) {
        out.partial[r * columns(p) + tile.column] = inner;
      }
    });
  }
};

// One block a tile; there are blocks for the most row tiles that there can be, and those left over end at once.
template <GroupedLayout layout, class Epilogue>
__global__ __launch_bounds__(mma_threads, 2) void rows_mma(GroupedProblem p, Gather gather, Epilogue epilogue) {
  const std::int64_t across = Epilogue::columns(p);
  const Tile tile = find_tile(p, blockIdx.x / across, blockIdx.x % across);
  if (tile.expert < 0) {
    return;
  }
  bf16* const memory = dynamic_shared<bf16>();
  const std::int64_t rows = tile.rows.end - tile.rows.begin - tile.row, first = tile.rows.begin + tile.row;
  const bf16* const b = static_cast<const bf16*>(p.b) + tile.expert * p.n * p.k;
  const ByRows left = by_rows(p.k, [&](int i) -> const bf16* {
    const std::int64_t row = i < rows ? gathered(gather, first + i) : -1;
    return row < 0 ? nullptr : static_cast<const bf16*>(p.a) + row * p.k;
  });
  MmaSums sums;
  if constexpr (layout == GroupedLayout::nt) {
    multiply_mma_tile(sums, left,
                      by_rows(p.k,
                              [&](int i) -> const bf16* {
                                const std::int64_t row = epilogue.row_of_b(p, i, tile.column);
                                return row < 0 ? nullptr : b + row * p.k;
                              }),
                      p.k, memory);
  } else {
    const std::int64_t column = tile.column * mma_edge;
    multiply_mma_tile(sums, left, by_steps(p.k, p.n - column, [&](std::int64_t k) { return b + k * p.n + column; }),
                      p.k, memory);
  }
  epilogue(stage(sums, memory), p, tile);
}

// tn: one block a tile of one expert's c [m, n].
__global__ __launch_bounds__(mma_threads, 2) void weights_mma(GroupedProblem p, Gather gather_a, Gather gather_b) {
  const std::int64_t across = parts(p.n, mma_edge), down = parts(p.m, mma_edge);
  const std::int64_t expert = blockIdx.x / (across * down);
  const std::int64_t i0 = blockIdx.x / across % down * mma_edge, j0 = blockIdx.x % across * mma_edge;
  const RowRange rows = rows_of(p, expert);
  const std::int64_t count = rows.end - rows.begin;
  if (count == 0 && p.beta != 0) {
    return;
  }
  bf16* const memory = dynamic_shared<bf16>();
  const auto operand = [&](const void* data, const Gather& gather, std::int64_t columns, std::int64_t from) {
    return by_steps(count, columns - from, [=](std::int64_t k) -> const bf16* {
      const std::int64_t row = gathered(gather, rows.begin + k);
      return row < 0 ? nullptr : static_cast<const bf16*>(data) + row * columns + from;
    });
  };
  MmaSums sums;
  multiply_mma_tile(sums, operand(p.a, gather_a, p.m, i0), operand(p.b, gather_b, p.n, j0), count, memory);
  store_tile(stage(sums, memory), static_cast<float*>(p.c) + (expert * p.m + i0) * p.n + j0, p.n, p.m - i0, p.n - j0,
             p.beta != 0);
}

template <GroupedLayout layout, class Epilogue>
void run_rows(const GroupedProblem& p, Gather gather, const Epilogue& epilogue, cudaStream_t stream) {
  // Each expert's last tile may be a part: at most one tile an expert more than the rows alone would need.
  const std::int64_t tiles = p.rows / mma_edge + std::min<std::int64_t>(p.experts, p.rows);
  launch(rows_mma<layout, Epilogue>, Grid{blocks_for(tiles * Epilogue::columns(p), 1), mma_threads, shared_bytes},
         stream, p, gather, epilogue);
}

__global__ void sum_parts(float* dweight, const float* partial, const std::int32_t* source, std::int64_t rows,
                          std::int64_t count) {
  const std::int64_t r = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= rows || source[r] < 0) {
    return;
  }
  float sum = 0.0f;
  for (std::int64_t part = 0; part < count; ++part) {
    sum += partial[r * count + part];
  }
  dweight[source[r]] = sum;
}

}  // namespace

bool mma_takes(const GroupedProblem& p, DType in) {
  const auto fits = [](std::int64_t size) { return size > 0 && size % 8 == 0; };
  const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  return in == DType::bf16 && fits(p.n) && fits(p.layout == GroupedLayout::tn ? p.m : p.k) && aligned(p.a) &&
         aligned(p.b) && aligned(p.c);
}

void grouped_mma(const GroupedProblem& p, DType out, Gather gather_a, Gather gather_b, cudaStream_t stream) {
  const auto rows = [&](auto epilogue) {
    if (p.layout == GroupedLayout::nt) {
      run_rows<GroupedLayout::nt>(p, gather_a, epilogue, stream);
    } else {
      run_rows<GroupedLayout::nn>(p, gather_a, epilogue, stream);
    }
  };
  if (p.layout == GroupedLayout::tn) {
    const std::int64_t tiles = p.experts * parts(p.m, mma_edge) * parts(p.n, mma_edge);
    launch(weights_mma, Grid{blocks_for(tiles, 1), mma_threads, shared_bytes}, stream, p, gather_a, gather_b);
  } else if (out == DType::f32) {
    rows(Plain<float>{});
  } else {
    rows(Plain<bf16>{});
  }
}

void grouped_mma_activate(const GroupedProblem& p, Gather gather, void* act, Activation kind, cudaStream_t stream) {
  with_activation(kind, [&](auto which) {
    run_rows<GroupedLayout::nt>(p, gather, Activate<decltype(which)>{static_cast<bf16*>(act)}, stream);
  });
}

std::int64_t mma_column_tiles(std::int64_t columns) {
  return parts(columns, mma_edge);
}

void grouped_mma_weigh(const GroupedProblem& p, Gather gather, const WeightedBackward& out, Activation kind,
                       cudaStream_t stream) {
  with_activation(kind,
                  [&](auto which) { run_rows<GroupedLayout::nn>(p, gather, Weigh<decltype(which)>{out}, stream); });
}

void sum_partials(float* dweight, std::int64_t choices, const float* partial, const std::int32_t* source,
                  std::int64_t rows, std::int64_t count, cudaStream_t stream) {
  if (choices > 0) {
    check(cudaMemsetAsync(dweight, 0, static_cast<std::size_t>(choices) * sizeof(float), stream), "sum_partials");
  }
  launch(sum_parts, Grid{blocks_for(rows, 256), 256}, stream, dweight, partial, source, rows, count);
}

}  // namespace orthant::cuda
