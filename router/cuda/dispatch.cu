// part_choices, dispatch_plan and keep_seated: where each choice lies among the packed rows, all on the device.
//
// Positions by counting: blocks count the choices of each expert in their runs of choices; then each sums the counts of
// the runs before its own, and gives every choice its row. That is the plan of all choices. Where some lose their seats
// it is a working list, in which an expert's choices of a group lie together: dispatch.h. Everything is whole numbers,
// so no result depends on the order of threads. It reads the T K choices twice for each 1024 experts.
#include <algorithm>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/launch.h"
#include "core/device/router_checks.h"
#include "router/cuda/dispatch.h"
#include "router/cuda/expert_rows.h"
#include "router/cuda/scan.h"
#include "router/rules/capacity.h"

namespace orthant::cuda {
namespace {

constexpr int dispatch_warps = 8, dispatch_threads = dispatch_warps * warp_threads;
constexpr int dispatch_items = 8;  // choices of a thread in a tile
constexpr std::int64_t dispatch_tile = dispatch_items * dispatch_threads;
constexpr std::int64_t most_runs = 128;   // each block reads all runs' counts
constexpr int most_slice_experts = 1024;  // bounds the shared memory
static_assert((dispatch_warps + 1) * most_slice_experts * sizeof(std::int32_t) <= least_shared_memory);

// The experts [first, first + experts) that a block counts. sliced: there are more than fit in shared memory, and slice
// blockIdx.y of them is the block's.
template <bool sliced>
struct Slice {
  int first, experts;

  __device__ explicit Slice(int all_experts)
      : first(sliced ? static_cast<int>(blockIdx.y) * most_slice_experts : 0),
        experts(sliced ? min(all_experts - first, most_slice_experts) : all_experts) {}

  // Whether a choice's expert (or -1: no choice, the first slice's) belongs to it.
  __device__ bool has(std::int32_t expert) const {
    return !sliced || (expert >= first && expert < first + experts) || (expert < 0 && first == 0);
  }
};

// A warp's choices of one tile, 32 neighbours at a time: choice(i) of this lane, -1 where there is none of the slice.
struct TileChoices {
  std::int32_t expert[dispatch_items];  // counted from the slice's first

  __device__ static std::int64_t choice(std::int64_t tile_begin, int i) {
    return tile_begin + (warp() * dispatch_items + i) * warp_threads + lane();
  }
  template <bool sliced>
  __device__ void load(const std::int32_t* from, std::int64_t tile_begin, std::int64_t end, Slice<sliced> slice) {
#pragma unroll
    for (int i = 0; i < dispatch_items; ++i) {
      expert[i] = choice(tile_begin, i) < end ? from[choice(tile_begin, i)] : -1;
      if constexpr (sliced) {
        expert[i] = slice.has(expert[i]) && expert[i] >= 0 ? expert[i] - slice.first : -1;
      }
    }
  }
};

// counts [runs, E]: choices of each expert in each run.
template <bool sliced>
__global__ void __launch_bounds__(dispatch_threads)
    count_choices(std::int32_t* counts, const std::int32_t* expert, std::int64_t choices, std::int64_t run_choices,
                  int experts) {
  const Slice<sliced> slice(experts);
  std::int32_t* const bins = dynamic_shared<std::int32_t>();  // [experts of the slice]
  for (int e = static_cast<int>(threadIdx.x); e < slice.experts; e += dispatch_threads) {
    bins[e] = 0;
  }
  __syncthreads();
  const std::int64_t begin = blockIdx.x * run_choices, end = min(begin + run_choices, choices);
  for (std::int64_t at = begin; at < end; at += dispatch_tile) {
    TileChoices mine;
    mine.load(expert, at, end, slice);
#pragma unroll
    for (int i = 0; i < dispatch_items; ++i) {
      const unsigned same = __match_any_sync(all_lanes, mine.expert[i]);
      if (mine.expert[i] >= 0 && (same & lower_lanes()) == 0) {
        atomicAdd(bins + mine.expert[i], __popc(same));
      }
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < slice.experts; e += dispatch_threads) {
    counts[static_cast<std::int64_t>(blockIdx.x) * experts + slice.first + e] = bins[e];
  }
}

struct PlaceTask {
  std::int32_t *row, *source;              // [choices], [room]
  std::int32_t *count, *dropped, *offset;  // [E], [E], [E + 1]
  const std::int32_t *expert, *counts;     // [choices]; [runs, E], from count_choices
  std::int64_t choices, run_choices, room;
  int experts, apart;
};

template <bool sliced>
__global__ void __launch_bounds__(dispatch_threads) place_choices(PlaceTask task) {
  const Slice<sliced> slice(task.experts);
  const int experts = slice.experts, thread = static_cast<int>(threadIdx.x);
  std::int32_t* const next = dynamic_shared<std::int32_t>();  // [experts] the next free row of each expert
  std::int32_t* const of_warp = next + experts;               // [warps, experts] of a tile: counts, then next free rows
  int before = 0, total = 0;                                  // of one expert: in the runs before, and in all
  const auto count_of = [&](int e) {
    before = 0;
    total = 0;
#pragma unroll 16
    for (unsigned run = 0; run < gridDim.x; ++run) {
      const std::int32_t here = task.counts[static_cast<std::int64_t>(run) * task.experts + e];
      before += run < blockIdx.x ? here : 0;
      total += here;
    }
    return total;
  };
  const int rows_end = begin_rows(count_of, task.experts, task.apart, [&](int e, int row) {
    if (slice.has(e)) {
      next[e - slice.first] = row + before;
      of_warp[e - slice.first] = total;  // for clear_sources
      if (blockIdx.x == 0) {
        task.offset[e] = row;
        task.count[e] = total;
        task.dropped[e] = 0;
      }
    }
  });
  if (slice.first == 0 && blockIdx.x == 0 && thread == 0) {
    task.offset[task.experts] = rows_end;
  }
  __syncthreads();
  if (task.apart > 0 || slice.first == 0) {
    const std::int64_t apart = task.apart, end = (slice.first + experts) * apart;
    clear_sources(
        task.source, [&](int e) { return of_warp[e - slice.first]; }, apart > 0 ? slice.first * apart : rows_end,
        apart > 0 ? min(end, task.room) : task.room, apart);
  }
  __syncthreads();

  const std::int64_t begin = blockIdx.x * task.run_choices, end = min(begin + task.run_choices, task.choices);
  std::int32_t* const mine_of_warp = of_warp + warp() * experts;
  for (std::int64_t at = begin; at < end; at += dispatch_tile) {
    TileChoices mine;
    mine.load(task.expert, at, end, slice);
    for (int e = lane(); e < experts; e += warp_threads) {
      mine_of_warp[e] = 0;
    }
    __syncwarp();
    int rank[dispatch_items];  // among the warp's choices of the same expert
#pragma unroll
    for (int i = 0; i < dispatch_items; ++i) {
      const std::int32_t e = mine.expert[i];
      const unsigned same = __match_any_sync(all_lanes, e);
      rank[i] = e >= 0 ? mine_of_warp[e] + __popc(same & lower_lanes()) : 0;
      __syncwarp();
      if (e >= 0 && (same & lower_lanes()) == 0) {
        mine_of_warp[e] += __popc(same);
      }
      __syncwarp();
    }
    __syncthreads();
    for (int e = thread; e < experts; e += dispatch_threads) {
      std::int32_t row = next[e];
      for (int w = 0; w < dispatch_warps; ++w) {
        const std::int32_t count = of_warp[w * experts + e];
        of_warp[w * experts + e] = row;
        row += count;
      }
      next[e] = row;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < dispatch_items; ++i) {
      const std::int64_t choice = TileChoices::choice(at, i);
      if (choice < end && slice.has(task.expert[choice])) {
        const std::int32_t e = mine.expert[i];
        const std::int32_t row = e >= 0 ? mine_of_warp[e] + rank[i] : -1;
        // More choices than there are rows apart for an expert: those have none (ops.h).
        const bool fits = row >= 0 && (task.apart == 0 || row < (slice.first + e + 1) * task.apart);
        task.row[choice] = fits ? row : -1;
        if (fits) {
          task.source[row] = static_cast<std::int32_t>(choice);
        }
      }
    }
    __syncthreads();  // before the next tile's counts
  }
}

// Sums of whole numbers: no order of threads changes them. count [zero] is 0 before.
__global__ void part(std::int32_t* real, float* other, std::int32_t* count, const std::int32_t* expert,
                     std::int64_t choices, int computing, int zero) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < choices; i += step) {
    const int number = expert[i] - computing;  // among those that compute nothing, or below 0
    real[i] = number < 0 ? expert[i] : -1;
    other[i] = number < 0 ? 0.0f : 1.0f;
    if (number >= 0 && number < zero) {
      atomicAdd(count + number, 1);
    }
  }
}

__global__ void unseat(std::int32_t* expert, const std::int32_t* row, std::int64_t choices) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < choices; i += step) {
    if (row[i] < 0) {
      expert[i] = -1;
    }
  }
}

// What the plan's counts say, for a plan of no choice: nothing is launched over runs then.
__global__ void plan_of_nothing(std::int32_t* count, std::int32_t* dropped, std::int32_t* offset, std::int32_t* source,
                                int experts, std::int64_t room, std::int64_t apart) {
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  for (int e = thread; e <= experts; e += step) {
    offset[e] = static_cast<std::int32_t>(e * apart);
    if (e < experts) {
      count[e] = 0;
      dropped[e] = 0;
    }
  }
  for (std::int64_t r = thread; r < room; r += step) {
    source[r] = -1;
  }
}

}  // namespace

void CudaStream::dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                               const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                               const GateConfig& config) {
  const std::int64_t room = check_dispatch_plan(row, source, count, dropped, offset, expert, weight, valid, config);
  const std::int64_t choices = expert.elements();
  const int experts = static_cast<int>(config.computing());
  if (choices == 0) {
    launch(plan_of_nothing, Grid{1, 256}, stream_, count.as<std::int32_t>(), dropped.as<std::int32_t>(),
           offset.as<std::int32_t>(), source.as<std::int32_t>(), experts, room, config.rows_per_expert);
    return;
  }
  const std::int64_t tiles = (choices + dispatch_tile - 1) / dispatch_tile,
                     run_tiles = (tiles + most_runs - 1) / most_runs;
  const std::int64_t run_choices = run_tiles * dispatch_tile, runs = (choices + run_choices - 1) / run_choices;
  const bool drops = may_drop(config);
  auto* const counts =
      static_cast<std::int32_t*>(scratch(0, static_cast<std::size_t>(experts * runs) * sizeof(std::int32_t)));
  PlaceTask task{.row = row.as<std::int32_t>(),
                 .source = source.as<std::int32_t>(),
                 .count = count.as<std::int32_t>(),
                 .dropped = dropped.as<std::int32_t>(),
                 .offset = offset.as<std::int32_t>(),
                 .expert = expert.as<std::int32_t>(),
                 .counts = counts,
                 .choices = choices,
                 .run_choices = run_choices,
                 .room = room,
                 .experts = experts,
                 .apart = static_cast<int>(config.rows_per_expert)};
  const std::int64_t groups = expert.dim(0) / config.group_tokens;
  if (drops) {  // the list of all choices, without gaps
    task.source = static_cast<std::int32_t*>(scratch(1, static_cast<std::size_t>(choices) * sizeof(std::int32_t)));
    task.room = choices;
    task.apart = 0;
  }
  const dim3 blocks(static_cast<unsigned>(runs), blocks_for(experts, most_slice_experts));
  const std::size_t bins = static_cast<std::size_t>(std::min(experts, most_slice_experts)) * sizeof(std::int32_t);
  const bool sliced = experts > most_slice_experts;
  launch(sliced ? count_choices<true> : count_choices<false>, Grid{blocks, dispatch_threads, device_.shared(bins)},
         stream_, counts, task.expert, choices, run_choices, experts);
  launch(sliced ? place_choices<true> : place_choices<false>,
         Grid{blocks, dispatch_threads, device_.shared((dispatch_warps + 1) * bins)}, stream_, task);
  if (drops) {
    GateConfig with_rows = config;
    with_rows.experts = experts;
    const SeatTask seats{.row = row.as<std::int32_t>(),
                         .source = source.as<std::int32_t>(),
                         .count = count.as<std::int32_t>(),
                         .dropped = dropped.as<std::int32_t>(),
                         .offset = offset.as<std::int32_t>(),
                         .list = task.source,
                         .weight = weight.as<float>(),
                         .valid = valid.as<std::uint8_t>(),
                         .config = with_rows,
                         .rule = seat_rule(config),
                         .groups = groups,
                         .room = room};
    seat_choices(stream_, seats, scratch(2, seat_scratch_bytes(groups, experts)));
  }
}

void CudaStream::part_choices(const Tensor& real, const Tensor& other, const Tensor& count, const Tensor& expert,
                              const GateConfig& config) {
  check_part_choices(real, other, count, expert, config);
  const std::int64_t choices = expert.elements();
  fill(count, 0);
  launch(part, Grid{blocks_for(choices, 256, 1 << 20), 256}, stream_, real.as<std::int32_t>(), other.as<float>(),
         count.as<std::int32_t>(), expert.as<std::int32_t>(), choices, static_cast<int>(config.computing()),
         static_cast<int>(config.zero_experts));
}

void CudaStream::keep_seated(const Tensor& expert, const Tensor& row) {
  check_keep_seated(expert, row);
  launch(unseat, Grid{blocks_for(expert.elements(), 256, 1 << 20), 256}, stream_, expert.as<std::int32_t>(),
         row.as<std::int32_t>(), expert.elements());
}

}  // namespace orthant::cuda
