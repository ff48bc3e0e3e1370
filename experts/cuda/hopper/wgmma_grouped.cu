// The experts' products on Hopper's own matrix instructions: clusters of two blocks take pairs of tiles from a counter,
// and in each block one tile is stored while the next is multiplied. The protocol and the floors: pingpong.h.
#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/hopper/pingpong.h"
#include "experts/cuda/hopper/register_epilogues.h"
#include "experts/cuda/tile_epilogues.h"

namespace orthant::cuda {
namespace {

constexpr int schedule_threads = 1024;

// One block: fills the schedule.
__global__ void order_experts(GroupedProblem p, Schedule schedule, int across) {
  const int experts = schedule.experts;
  const auto rows_at = [&](int e) {
    const RowRange rows = rows_of(p, e);
    return static_cast<int>(rows.end - rows.begin);
  };
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    const int mine = rows_at(e);
    int before = 0;
    for (int other = 0; other < experts; ++other) {
      const int rows = rows_at(other);
      before += rows > mine || (rows == mine && other < e) ? 1 : 0;
    }
    schedule.expert()[before] = e;
  }
  __syncthreads();
  if (warp() != 0) {
    return;
  }
  int sum = 0;
  for (int begin = 0; begin < experts; begin += warp_threads) {
    const int at = begin + lane();
    int pairs = 0;
    if (at < experts) {
      pairs = Pairs::of(rows_of_tiles(p, rows_of(p, schedule.expert()[at])), across).count();
    }
    int upto = pairs;  // inclusive sums over the lanes
#pragma unroll
    for (int distance = 1; distance < warp_threads; distance *= 2) {
      const int other = __shfl_up_sync(all_lanes, upto, distance);
      upto += lane() >= distance ? other : 0;
    }
    if (at < experts) {
      schedule.first()[at] = sum + upto - pairs;
    }
    sum += __shfl_sync(all_lanes, upto, warp_threads - 1);
  }
  if (lane() == 0) {
    schedule.first()[experts] = sum;
    *schedule.counter() = 0;
  }
}

// Registers of a producer's thread and of a consumer's: all that a block has when it starts (with more it would wait
// for ever).
constexpr int producer_registers = 40, consumer_registers = 232;
static_assert(producer_registers + consumer_groups * consumer_registers <= 65536 / warpgroup_threads / 24 * 24);

constexpr int box_memory = consumer_groups * group_warps * warp_box_bytes;
constexpr int alignment_slack = 1024 - 128;  // dynamic shared memory is aligned to 128
constexpr std::size_t shared_bytes =
    Slices::bytes + box_memory + Slices::barrier_bytes + TileQueue::bytes + alignment_slack;
static_assert(shared_bytes <= 227 * 1024);

// This block's shared memory, from a multiple of 1024 on.
struct Shared {
  std::uint32_t slices, boxes, barriers, queue;
};
__device__ Shared shared_memory() {
  const std::uint32_t begin = shared_address(dynamic_shared<unsigned char>()), aligned = (begin + 1023) / 1024 * 1024;
  const std::uint32_t boxes = aligned + Slices::bytes, barriers = boxes + box_memory;
  return {aligned, boxes, barriers, barriers + Slices::barrier_bytes};
}

struct Maps {
  CUtensorMap b;
  OutputMaps out;
};

// What a kernel is about, and how its tiles are loaded: those of nt and nn by experts' weights, of tn by packed rows.
template <GroupedLayout layout, class Epilogue>
struct Loads {
  static constexpr bool tn = layout == GroupedLayout::tn, nt = layout == GroupedLayout::nt;

  static __device__ int depth(const GroupedProblem& p, const ClusterTile& tile) {
    return tn ? tile.count : static_cast<int>(p.k);
  }
  static __device__ auto gathered_operand(const GroupedProblem& p, const Gather& gather, const ClusterTile& tile) {
    if constexpr (tn) {
      return StepLines(static_cast<const bf16*>(p.a) + tile.row, p.m, p.m - tile.row, gather, tile.begin, tile.count);
    } else {
      return RowLines(static_cast<const bf16*>(p.a), p.k, gather, tile);
    }
  }
  // Half of a slice of B: of its columns where it lies by rows, of its steps else.
  static __device__ void load_half(std::uint32_t to, std::uint32_t barrier, const GroupedProblem& p,
                                   const CUtensorMap& map, const ClusterTile& tile, int k0, int half, bool both) {
    if constexpr (nt) {
      load_box(to + half * (slice_b_bytes / 2), barrier, map, k0, Epilogue::row_of_b(p, tile, half), tile.expert, both);
    } else {
      constexpr int steps = slice_depth / 2;
      const int k = (tn ? tile.begin : 0) + k0 + half * steps;
      const int expert = tn ? 0 : tile.expert;
#pragma unroll 1
      for (int part = 0; part < wgmma_columns / line_elements; ++part) {
        load_box(to + (part * slice_depth + half * steps) * line_bytes, barrier, map,
                 tile.column * wgmma_columns + part * line_elements, k, expert, both);
      }
    }
  }
  static CUtensorMap map(const GroupedProblem& p) {
    if constexpr (nt) {
      return tensor_map(p.b, {p.k, p.n, p.experts}, {line_elements, wgmma_columns / 2, 1});
    } else {
      return tensor_map(p.b, {p.n, tn ? p.rows : p.k, tn ? 1 : p.experts}, {line_elements, slice_depth / 2, 1});
    }
  }
};

template <GroupedLayout layout, class Epilogue>
__global__ __launch_bounds__(pingpong_threads,
                             1) void pingpong_wgmma(GroupedProblem p, Gather gather, Schedule schedule, int across,
                                                    const __grid_constant__ Maps maps, Epilogue epilogue) {
  using Load = Loads<layout, Epilogue>;
  const Shared shared = shared_memory();
  Slices slices(shared.slices, shared.barriers);
  TileQueue queue(shared.queue);
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    slices.make_barriers();
    queue.make_barriers();
  }
  cluster_sync();
  const auto next = [&] { return find_tile(p, schedule, queue.take(), across, rank); };
  if (threadIdx.x < warpgroup_threads) {
    give_registers<producer_registers>();
    const bool first = threadIdx.x == 0;
    for (;;) {
      if (first && rank == 0) {
        do {  // one ahead
          queue.give(schedule);
        } while (queue.given() < 2);
      }
      __syncwarp();
      const ClusterTile tile = next();
      if (tile.expert < 0) {
        break;
      }
      auto lines = Load::gathered_operand(p, gather, tile);
      const int count = slices_of(Load::depth(p, tile));
      for (int number = 0; number < count; ++number) {
        const std::uint32_t place = slices.free_place();
        if (first) {
          const std::uint32_t barrier = slices.expect_boxes();
          const int half = tile.shared ? rank : 0, k0 = number * slice_depth;
          Load::load_half(place + slice_a_bytes, barrier, p, maps.b, tile, k0, half, tile.shared);
          if (!tile.shared) {
            Load::load_half(place + slice_a_bytes, barrier, p, maps.b, tile, k0, 1, false);
          }
        }
        lines.start(place, number * slice_depth);
        slices.pass_on();
      }
    }
  } else {
    take_registers<consumer_registers>();
    const unsigned group = static_cast<unsigned>(warp()) / group_warps - 1;
    for (;;) {
      const ClusterTile tile = next();
      if (tile.expert < 0) {
        break;
      }
      const int depth = Load::depth(p, tile);
      const unsigned turn = queue.taken() - 1;
      if (turn % consumer_groups != group) {
        slices.skip(slices_of(depth));
        continue;
      }
      WgmmaSums sums[2];
      multiply_slices<layout != GroupedLayout::tn, layout == GroupedLayout::nt, layout == GroupedLayout::tn>(
          sums, slices, turn, depth);
      wait_for_stores<0>();  // those of this warp's last tile, long ago
      Boxes boxes(shared.boxes + static_cast<std::uint32_t>((warp() - group_warps) * warp_box_bytes));
      if (tile.column < across) {  // else it is there for the other block's sake
        epilogue(sums, p, maps.out, tile, boxes);
      }
    }
    wait_for_stores<0>();
  }
  cluster_sync();
}

template <GroupedLayout layout, class Epilogue>
void run_kernel(const CudaStream& stream, const GroupedProblem& p, const Gather& gather, const Epilogue& epilogue) {
  const int across = static_cast<int>(parts(Epilogue::width(p), Epilogue::columns));
  const std::int64_t pairs = most_pairs(p, across);
  if (pairs == 0) {
    return;
  }
  const Tensor memory = stream.cuda().empty(DType::i32, {Schedule::words(p.experts)});
  const Schedule schedule{memory.as<std::int32_t>(), static_cast<std::int32_t>(p.experts)};
  launch(order_experts, Grid{1, schedule_threads}, stream.handle(), p, schedule, across);
  const unsigned clusters = blocks_for(pairs, 1, std::max(stream.cuda().multiprocessors() / cluster_blocks, 1));
  Grid grid{clusters * cluster_blocks, pingpong_threads, stream.cuda().shared(shared_bytes)};
  grid.cluster = cluster_blocks;
  launch(pingpong_wgmma<layout, Epilogue>, grid, stream.handle(), p, gather, schedule, across,
         Maps{Loads<layout, Epilogue>::map(p), epilogue.maps(p)}, epilogue);
}

// The kernels for the epilogues that engine_of names.
template <GroupedLayout layout, class Out>
void run(const CudaStream& stream, const GroupedProblem& p, const Gather& gather, const Plain<Out>&) {
  if (p.beta == 0 && std::is_same_v<Out, bf16>) {
    run_kernel<layout>(stream, p, gather, StoreRows{});
  } else {
    run_kernel<layout>(stream, p, gather, AddRows<Out>{});
  }
}
template <GroupedLayout layout, class Kind>
void run(const CudaStream& stream, const GroupedProblem& p, const Gather& gather, const Activate<Kind>& of) {
  run_kernel<layout>(stream, p, gather, ActivateRows<Kind>{of.act});
}
template <GroupedLayout layout, class Kind>
void run(const CudaStream& stream, const GroupedProblem& p, const Gather& gather, const Weigh<Kind>& of) {
  run_kernel<layout>(stream, p, gather, WeighRows<Kind>{of.out});
}

struct Wgmma {
  template <GroupedLayout layout, class Epilogue>
  static void rows(const CudaStream& stream, const GroupedProblem& p, Gather gather, const Epilogue& epilogue) {
    run<layout>(stream, p, gather, epilogue);
  }
  // The operand that is gathered is A: c is then the transposed product's where that is b.
  static void weights(const CudaStream& stream, const GroupedProblem& p, Gather gather_a, Gather gather_b) {
    require(gather_a.source == nullptr || gather_b.source == nullptr,
            "the gradient of experts' weights: rows of both operands are gathered, where one can be");
    const bool transposed = gather_b.source != nullptr;
    GroupedProblem q = p;
    if (transposed) {
      std::swap(q.a, q.b);
      std::swap(q.m, q.n);
    }
    if (p.rows == 0) {
      q.rows = 1;  // a tensor map has a row; no slice is asked for
      q.b = q.c;
    }
    if (transposed) {
      run_kernel<GroupedLayout::tn>(stream, q, gather_b, StoreWeights<true>{});
    } else {
      run_kernel<GroupedLayout::tn>(stream, q, gather_a, StoreWeights<false>{});
    }
  }
};

}  // namespace

constinit const ExpertEngine wgmma_engine = engine_of<Wgmma>(WeighRows<Swiglu>::columns);

}  // namespace orthant::cuda
