// dispatch_plan: who gets a seat, then where each kept choice lies in the packed rows.
#include "router/rules/capacity.h"

#include <algorithm>
#include <vector>

#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/router_checks.h"

namespace orthant {
namespace {

// The choices t * K + k of one group's tokens in the order in which they are seated.
void seating_order(std::vector<std::int64_t>& order, const float* weight, std::int64_t first, std::int64_t last,
                   const GateConfig& config) {
  order.clear();
  for (std::int64_t k = 0; k < config.top_k; ++k) {
    for (std::int64_t t = first; t < last; ++t) {
      order.push_back(t * config.top_k + k);
    }
  }
  if (config.drop_policy == DropPolicy::position) {
    return;
  }
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const std::uint32_t of_a = seat_priority(config, a % config.top_k, weight[a]);
    const std::uint32_t of_b = seat_priority(config, b % config.top_k, weight[b]);
    return of_a != of_b ? of_a > of_b : a < b;
  });
}

}  // namespace

void CpuStream::dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                              const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                              const GateConfig& config) {
  const std::int64_t tokens = expert.dim(0), experts = config.computing(), k_count = config.top_k;
  const std::int64_t room = check_dispatch_plan(row, source, count, dropped, offset, expert, weight, valid, config);
  const std::int64_t groups = tokens / config.group_tokens, apart = config.rows_per_expert;  // 0: without gaps
  const std::int32_t* const chosen = expert.as<std::int32_t>();                              // [T, K]
  std::int32_t* const packed = row.as<std::int32_t>();                                       // [T, K]
  std::int32_t* const from = source.as<std::int32_t>();                                      // [room]
  const std::int64_t choices = config.group_tokens * k_count;                                // of one group

  // A gate may be anybody's, and what it left unwritten is some number.
  const std::int32_t* const beyond =
      std::find_if(chosen, chosen + tokens * k_count, [&](std::int32_t e) { return e >= experts; });
  require(beyond == chosen + tokens * k_count,
          "dispatch_plan: token {} has expert {} as its choice {}; the gate (moe.router) must write 0 to {}, or -1 for "
          "none",
          (beyond - chosen) / k_count, *beyond, (beyond - chosen) % k_count, experts - 1);

  // Seats, group by group: packed becomes 0 for a kept choice, -1 for the others.
  std::vector<std::int32_t> kept(groups * experts, 0), refused(kept);
  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> order;
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t first = g * config.group_tokens, last = first + config.group_tokens;
      const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
      const std::int64_t seats =
          capacity(config, std::count_if(is_valid + first, is_valid + last, [](std::uint8_t v) { return v != 0; }));
      std::int32_t* const taken = kept.data() + g * experts;
      seating_order(order, weight.as<float>(), first, last, config);
      for (const std::int64_t choice : order) {
        const std::int32_t e = chosen[choice];
        packed[choice] = -1;
        if (e >= 0 && taken[e] < seats) {
          packed[choice] = 0;
          ++taken[e];
        } else if (e >= 0) {
          ++refused[g * experts + e];
        }
      }
    }
  });

  // The first packed row of each (expert, group); `kept` becomes the next free row.
  std::int32_t* const first_row = offset.as<std::int32_t>();  // [E + 1]
  std::int32_t next = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    std::int32_t lost = 0;
    next = apart > 0 ? static_cast<std::int32_t>(e * apart) : next;
    const std::int32_t begin = next;
    first_row[e] = begin;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::size_t at = static_cast<std::size_t>(g * experts + e);
      const std::int32_t rows = kept[at];
      kept[at] = next;
      next += rows;
      lost += refused[at];
    }
    count.as<std::int32_t>()[e] = next - begin;
    dropped.as<std::int32_t>()[e] = lost;
    require(apart == 0 || next - begin <= apart,
            "dispatch_plan: expert {} keeps {} choices, there are {} rows for each", e, next - begin, apart);
  }
  first_row[experts] = apart > 0 ? static_cast<std::int32_t>(room) : next;
  std::fill_n(from, room, -1);

  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      for (std::int64_t choice = g * choices; choice < (g + 1) * choices; ++choice) {
        if (packed[choice] >= 0) {
          packed[choice] = kept[g * experts + chosen[choice]]++;
          from[packed[choice]] = static_cast<std::int32_t>(choice);
        }
      }
    }
  });
}

void CpuStream::part_choices(const Tensor& real, const Tensor& other, const Tensor& count, const Tensor& expert,
                             const GateConfig& config) {
  check_part_choices(real, other, count, expert, config);
  const std::int32_t* const chosen = expert.as<std::int32_t>();
  std::int32_t* const counts = count.as<std::int32_t>();
  std::fill_n(counts, config.zero_experts, 0);
  for (std::int64_t choice = 0; choice < expert.elements(); ++choice) {
    const std::int64_t zero = chosen[choice] - config.computing();  // its number among them, or below 0
    real.as<std::int32_t>()[choice] = zero < 0 ? chosen[choice] : -1;
    other.as<float>()[choice] = zero < 0 ? 0.0f : 1.0f;
    require(zero < config.zero_experts,
            "part_choices: token {} has expert {} as its choice {}; the gate (moe.router) must write 0 to {}, or -1 "
            "for none",
            choice / config.top_k, chosen[choice], choice % config.top_k, config.experts - 1);
    if (zero >= 0) {
      ++counts[zero];
    }
  }
}

void CpuStream::keep_seated(const Tensor& expert, const Tensor& row) {
  check_keep_seated(expert, row);
  std::int32_t* const chosen = expert.as<std::int32_t>();
  const std::int32_t* const packed = row.as<std::int32_t>();
  for (std::int64_t choice = 0; choice < expert.elements(); ++choice) {
    chosen[choice] = packed[choice] < 0 ? -1 : chosen[choice];
  }
}

}  // namespace orthant
