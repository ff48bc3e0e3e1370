#include "core/device/cuda/token_sort.h"

#include <bit>

#include "core/device/cuda/device_math.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {
namespace {

constexpr int most_digit_bits = 10, most_digits = 1 << most_digit_bits;
constexpr int sort_warps = 8, sort_threads = sort_warps * warp_threads;
constexpr int keys_of_thread = 4, keys_of_warp = keys_of_thread * warp_threads, sort_tile = sort_warps * keys_of_warp;

struct Digit {
  int shift, digits;  // digits: a power of two
  __device__ int of(std::int32_t row) const { return (row >> shift) & (digits - 1); }
};

// row[t], token[t] = t.
__global__ void name_rows(std::int32_t* row, std::int32_t* token, const std::int32_t* id, std::int64_t tokens,
                          std::int64_t table_rows, std::int64_t first_row) {
  const std::int64_t t = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < tokens) {
    const std::int64_t at = id[t] - first_row;
    row[t] = static_cast<std::int32_t>(at >= 0 && at < table_rows ? at : table_rows);
    token[t] = static_cast<std::int32_t>(t);
  }
}

// counts [digits, tiles].
__global__ void count_digits(std::int32_t* counts, const std::int32_t* row, std::int64_t tokens, Digit digit) {
  ORTHANT_SHARED(int, of_digit, [most_digits]);
  for (int i = static_cast<int>(threadIdx.x); i < digit.digits; i += sort_threads) {
    of_digit[i] = 0;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < keys_of_thread; ++k) {
    const std::int64_t t = std::int64_t{blockIdx.x} * sort_tile + k * sort_threads + threadIdx.x;
    if (t < tokens) {
      atomicAdd(&of_digit[digit.of(row[t])], 1);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < digit.digits; i += sort_threads) {
    counts[std::int64_t{i} * gridDim.x + blockIdx.x] = of_digit[i];
  }
}

// In place: counts become the sums of those before them. One block, each thread a part of them: some 100 KB for 32768
// tokens, which stay in cache.
constexpr int scan_threads = 1024;

__global__ void scan_counts(std::int32_t* counts, std::int64_t n) {
  ORTHANT_SHARED(int, of_warp, [32]);
  const std::int64_t each = (n + scan_threads - 1) / scan_threads;
  // Parts of 32 threads lie interleaved in turns of 32, so that a warp reads lines: turn by turn, with a running sum.
  const std::int64_t begin = std::int64_t{warp()} * each * warp_threads;
  int total = 0;
  for (std::int64_t turn = 0; turn < each; ++turn) {
    const std::int64_t i = begin + turn * warp_threads + lane();
    total += i < n ? counts[i] : 0;
  }
  total = warp_sum(total);
  if (lane() == 0) {
    of_warp[warp()] = total;
  }
  __syncthreads();
  int before = warp_sum(lane() < warp() ? of_warp[lane()] : 0);
  for (std::int64_t turn = 0; turn < each; ++turn) {
    const std::int64_t i = begin + turn * warp_threads + lane();
    const int own = i < n ? counts[i] : 0;
    int up_to = own;
#pragma unroll
    for (int offset = 1; offset < warp_threads; offset *= 2) {
      const int other = __shfl_up_sync(all_lanes, up_to, static_cast<unsigned>(offset));
      up_to += lane() >= offset ? other : 0;
    }
    if (i < n) {
      counts[i] = before + up_to - own;
    }
    before += __shfl_sync(all_lanes, up_to, warp_threads - 1);
  }
}

// Moves each token behind those of its tile with the same digit that come earlier. start [digits, tiles]: where the
// tile's tokens of a digit begin.
__global__ void move_tokens(std::int32_t* to_row, std::int32_t* to_token, const std::int32_t* row,
                            const std::int32_t* token, const std::int32_t* start, std::int64_t tokens, Digit digit) {
  // Of each warp: how many of its tokens have the digit; then, where they begin.
  ORTHANT_SHARED(int, place, [sort_warps][most_digits]);
  for (int i = lane(); i < digit.digits; i += warp_threads) {
    place[warp()][i] = 0;
  }
  __syncwarp();
  const std::int64_t first = std::int64_t{blockIdx.x} * sort_tile + warp() * keys_of_warp + lane();
  std::int32_t my_row[keys_of_thread], my_token[keys_of_thread];
  int rank[keys_of_thread];
#pragma unroll
  for (int k = 0; k < keys_of_thread; ++k) {
    const std::int64_t t = first + k * warp_threads;
    my_row[k] = t < tokens ? row[t] : 0;
    my_token[k] = t < tokens ? token[t] : 0;
  }
#pragma unroll
  for (int k = 0; k < keys_of_thread; ++k) {
    const bool valid = first + k * warp_threads < tokens;
    const int mine = valid ? digit.of(my_row[k]) : -1;
    const unsigned peers = __match_any_sync(all_lanes, mine);
    rank[k] = valid ? place[warp()][mine] + __popc(peers & ((1u << lane()) - 1u)) : 0;
    __syncwarp();
    if (valid && __ffs(static_cast<int>(peers)) - 1 == lane()) {
      place[warp()][mine] += __popc(peers);
    }
    __syncwarp();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < digit.digits; i += sort_threads) {
    int begin = start[std::int64_t{i} * gridDim.x + blockIdx.x];
#pragma unroll
    for (int w = 0; w < sort_warps; ++w) {
      const int count = place[w][i];
      place[w][i] = begin;
      begin += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < keys_of_thread; ++k) {
    if (first + k * warp_threads < tokens) {
      const int to = place[warp()][digit.of(my_row[k])] + rank[k];
      to_row[to] = my_row[k];
      to_token[to] = my_token[k];
    }
  }
}

}  // namespace

TokenOrder sort_tokens(CudaStream& stream, const std::int32_t* id, std::int64_t tokens, std::int64_t table_rows,
                       std::int64_t first_row) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(table_rows));  // table_rows itself is a key
  const int passes = (bits + most_digit_bits - 1) / most_digit_bits, digit_bits = (bits + passes - 1) / passes;
  const unsigned tiles = blocks_for(tokens, sort_tile);
  const std::int64_t counters = (std::int64_t{1} << digit_bits) * tiles;
  auto* room = static_cast<std::int32_t*>(
      stream.scratch(0, static_cast<std::size_t>(4 * tokens + counters) * sizeof(std::int32_t)));
  std::int32_t *row = room, *token = room + tokens, *other_row = room + 2 * tokens, *other_token = room + 3 * tokens;
  std::int32_t* counts = room + 4 * tokens;
  const StreamRef order = stream.handle();
  launch(name_rows, Grid{blocks_for(tokens, sort_threads), sort_threads}, order, row, token, id, tokens, table_rows,
         first_row);
  for (int pass = 0; pass < passes; ++pass) {
    const Digit digit{pass * digit_bits, 1 << digit_bits};
    launch(count_digits, Grid{tiles, sort_threads}, order, counts, row, tokens, digit);
    launch(scan_counts, Grid{1, scan_threads}, order, counts, counters);
    launch(move_tokens, Grid{tiles, sort_threads}, order, other_row, other_token, row, token, counts, tokens, digit);
    std::swap(row, other_row);
    std::swap(token, other_token);
  }
  return {token, row};
}

}  // namespace orthant::cuda
