// Who keeps a seat: the choices of one expert in one group are a piece of the list of all choices, found by bisection;
// a block takes the greatest of them (select.h) and writes their rows.
//
// It reads the list two times, and up to six where an expert has fewer seats than choices.
#include "core/device/cuda/launch.h"
#include "router/cuda/dispatch.h"
#include "router/cuda/expert_rows.h"
#include "router/cuda/scan.h"
#include "router/cuda/select.h"

namespace orthant::cuda {
namespace {

struct Working {
  std::int64_t* seats;        // [groups] of each expert
  std::int32_t* begin;        // [E * groups + 1] where an expert's choices of a group begin in the list
  std::int32_t* kept_before;  // [E * groups] rows of the expert before those of the group
};

Working working_in(void* memory, std::int64_t groups, std::int64_t experts) {
  auto* const seats = static_cast<std::int64_t*>(memory);
  auto* const begin = reinterpret_cast<std::int32_t*>(seats + groups);
  return {seats, begin, begin + experts * groups + 1};
}

// One block a group.
__global__ void count_seats(std::int64_t* seats, const std::uint8_t* valid, std::int64_t group_tokens, SeatRule rule) {
  int count = 0;
  for (std::int64_t i = threadIdx.x; i < group_tokens; i += blockDim.x) {
    count += valid[blockIdx.x * group_tokens + i] != 0 ? 1 : 0;
  }
  count = block_sum(count);
  if (threadIdx.x == 0) {
    seats[blockIdx.x] = rule.seats(count);
  }
}

// The first place in list[begin .. end), which rises, whose choice is at least `choice`.
__device__ int lower_bound(const std::int32_t* list, int begin, int end, std::int64_t choice) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (list[middle] < choice) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// One warp an expert: pieces of the list, and how many of them are kept.
__global__ void __launch_bounds__(128) find_pieces(SeatTask task, Working at) {
  const int experts = static_cast<int>(task.config.experts);
  const int e = static_cast<int>(blockIdx.x) * 4 + warp();
  if (e >= experts) {
    return;
  }
  const std::int64_t group_choices = task.config.group_tokens * task.config.top_k;
  const int end = task.offset[e + 1];
  int begin = task.offset[e], kept_before = 0, refused = 0;
  for (std::int64_t base = 0; base < task.groups; base += warp_threads) {
    const std::int64_t group = base + lane();
    const bool one = group < task.groups;
    const int next = one ? lower_bound(task.list, begin, end, (group + 1) * group_choices) : end;
    const int above = __shfl_up_sync(all_lanes, next, 1);
    const int first = lane() == 0 ? begin : above;
    const int count = next - first;
    const int kept = one && at.seats[group] < count ? static_cast<int>(at.seats[group]) : count;
    const int sum = warp_inclusive_sum(kept);
    if (one) {
      at.begin[e * task.groups + group] = first;
      at.kept_before[e * task.groups + group] = kept_before + sum - kept;
    }
    kept_before += __shfl_sync(all_lanes, sum, warp_threads - 1);
    refused += warp_sum(count - kept);
    begin = __shfl_sync(all_lanes, next, warp_threads - 1);
  }
  if (lane() == 0) {
    task.count[e] = kept_before;
    task.dropped[e] = refused;
    if (e == experts - 1) {
      at.begin[experts * task.groups] = end;
    }
  }
}

// One block: offset from count.
__global__ void __launch_bounds__(256)
    find_offsets(std::int32_t* offset, const std::int32_t* count, int experts, std::int64_t apart) {
  const int end = begin_rows([&](int e) { return count[e]; }, experts, apart, [&](int e, int row) { offset[e] = row; });
  if (threadIdx.x == 0) {
    offset[experts] = end;
  }
}

// A block an expert's piece of a group, at a time.
__global__ void __launch_bounds__(256) take_seats(SeatTask task, Working at) {
  const int k_count = static_cast<int>(task.config.top_k);
  const std::int64_t apart = task.config.rows_per_expert;
  for (std::int64_t item = blockIdx.x; item < task.config.experts * task.groups; item += gridDim.x) {
    const std::int64_t e = item / task.groups;
    const int begin = at.begin[item], count = at.begin[item + 1] - begin;
    if (count == 0) {
      continue;
    }
    const std::int64_t seats = at.seats[item % task.groups];
    const std::int32_t* const list = task.list + begin;
    const std::int64_t first_row = task.offset[e] + at.kept_before[item];
    const auto priority = [&](int i) { return seat_priority(task.config, list[i] % k_count, task.weight[list[i]]); };
    const auto place = [&](int i, bool taken, int before) {
      const std::int64_t r = first_row + before;
      const bool fits = taken && (apart == 0 || r < (e + 1) * apart);
      task.row[list[i]] = fits ? static_cast<std::int32_t>(r) : -1;
      if (fits) {
        task.source[r] = list[i];
      }
    };
    if (count <= seats) {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += 256) {
        place(i, true, i);
      }
    } else {
      visit_taken(count, find_threshold(count, static_cast<int>(seats), priority), priority, place);
    }
  }
  const std::int64_t taken = apart > 0 ? 0 : task.offset[task.config.experts];
  clear_sources(
      task.source, [&](int e) { return task.count[e]; }, taken, task.room, apart);
}

}  // namespace

std::size_t seat_scratch_bytes(std::int64_t groups, std::int64_t experts) {
  return static_cast<std::size_t>(groups) * sizeof(std::int64_t) +
         static_cast<std::size_t>(2 * experts * groups + 1) * sizeof(std::int32_t);
}

void seat_choices(const StreamRef& stream, const SeatTask& task, void* working) {
  const std::int64_t experts = task.config.experts;
  const Working at = working_in(working, task.groups, experts);
  launch(count_seats, Grid{blocks_for(task.groups, 1), 256}, stream, at.seats, task.valid, task.config.group_tokens,
         task.rule);
  launch(find_pieces, Grid{blocks_for(experts, 4), 128}, stream, task, at);
  launch(find_offsets, Grid{1, 256}, stream, task.offset, task.count, static_cast<int>(experts),
         task.config.rows_per_expert);
  launch(take_seats, Grid{blocks_for(experts * task.groups, 1, 1 << 16), 256}, stream, task, at);
}

}  // namespace orthant::cuda
