// Replay: recorded logits through a gate and its seats again, by the operations that training runs, on the CPU.
//
// What a router of the settings would have decided about these logits. In the first routed layer that is what it would
// have decided in the run; below it logits would have been others, as far as other experts had computed for the tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/route/recorded.h"

namespace orthant {

struct Decisions {
  int layer = 0;  // 1 + block
  std::int64_t top_k = 1;
  std::vector<std::int32_t> expert;  // [T, K], -1: no choice
  std::vector<std::uint8_t> kept;    // [T, K]: it has a seat
  // As LayerCounters.
  std::vector<std::int64_t> load, computed;  // [E]
  std::int64_t choices = 0, dropped_by_capacity = 0, dropped_by_chance = 0;
};

// In the order of layers. settings: the run's, or changed in [moe] (but for experts and every).
// Errors: ConfigError where the recording has too few logits of a token for that router.
std::vector<Decisions> replay(const RecordedStep& step, const Settings& settings);

}  // namespace orthant
