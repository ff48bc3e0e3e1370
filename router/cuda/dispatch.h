// The second half of dispatch_plan where choices can lose their seats.
#pragma once

#include <cuda_runtime.h>

#include <orthant/ops.h>

#include <cstddef>
#include <cstdint>

#include "core/device/cuda/recorder.h"
#include "router/rules/capacity.h"

namespace orthant::cuda {

// The plan's outputs, and what they are made from. On entry offset and list are those of a plan of all choices without
// gaps, and row is -1 where there is no choice.
struct SeatTask {
  std::int32_t *row, *source;              // [T, K], [room]
  std::int32_t *count, *dropped, *offset;  // [E], [E], [E + 1]
  const std::int32_t* list;                // [T * K] choices in the order (expert, token, k)
  const float* weight;                     // [T, K]
  const std::uint8_t* valid;               // [T]
  GateConfig config;
  SeatRule rule;
  std::int64_t groups, room;
};

std::size_t seat_scratch_bytes(std::int64_t groups, std::int64_t experts);

// Gives each expert's seats in each group to the choices with the greatest priority (router/rules/capacity.h), and
// these their rows. working: seat_scratch_bytes of device memory.
void seat_choices(const StreamRef& stream, const SeatTask& task, void* working);

}  // namespace orthant::cuda
