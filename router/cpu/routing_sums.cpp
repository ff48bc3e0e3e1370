// routing_sums: runs of tokens in parallel, then their sums in order.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/router_checks.h"
#include "router/cpu/scores.h"
#include "router/rules/gate.h"

namespace orthant {
namespace {

// In nats. x: a token's logits, score: room for E numbers.
double entropy_of_scores(const float* x, float lse, float* score, const GateConfig& config) {
  if (config.score == ScoreKind::sigmoid) {
    const double sum = sigmoid_row(score, x, config.experts);
    double weighted = 0;
    for (std::int64_t e = 0; e < config.experts; ++e) {
      const double s = score[e];
      weighted += s > 0 ? s * std::log(s) : 0;
    }
    return sum > 0 ? std::log(sum) - weighted / sum : 0;
  }
  softmax_row_again(score, x, lse, config.experts);
  double entropy = 0;
#pragma omp simd reduction(+ : entropy)
  for (std::int64_t e = 0; e < config.experts; ++e) {
    entropy += score[e] > 0 ? static_cast<double>(score[e]) * (lse - x[e]) : 0;
  }
  return entropy;
}

struct Margin {
  float least_chosen = INFINITY, greatest_other = -INFINITY;
  bool exists = false;
};

// room: for E numbers.
Margin margin_of(const float* x, const std::int32_t* selected, float* room, const GateConfig& config) {
  Margin margin;
  std::copy_n(x, config.experts, room);
  std::int64_t count = 0;
  for (std::int64_t k = 0; k < config.top_k; ++k) {
    if (selected[k] >= 0 && selected[k] < config.experts) {
      margin.least_chosen = std::min(margin.least_chosen, x[selected[k]]);
      room[selected[k]] = -INFINITY;
      ++count;
    }
  }
  margin.exists = count > 0 && count < config.experts;
  float greatest = -INFINITY;
#pragma omp simd reduction(max : greatest)
  for (std::int64_t e = 0; e < config.experts; ++e) {
    greatest = room[e] > greatest ? room[e] : greatest;
  }
  margin.greatest_other = greatest;
  return margin;
}

}  // namespace

void CpuStream::routing_sums(const Tensor& sums, const Tensor& expert, const Tensor& lse, const Tensor& logits,
                             const Tensor& valid, const GateConfig& config) {
  check_routing_sums(sums, expert, lse, logits, valid, config);
  const std::int64_t experts = config.experts, k_count = config.top_k;
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  const Runs runs{logits.dim(0) / config.group_tokens, config.group_tokens};
  std::vector<double> of_run(static_cast<std::size_t>(runs.groups * runs.per_group() * 3), 0.0);
  runs.for_each(threads_, [&](std::int64_t run, std::int64_t, std::int64_t first, std::int64_t last) {
    std::vector<float> score(experts);
    std::int32_t ranked[2];
    double* const to = of_run.data() + run * 3;
    for (std::int64_t t = first; t < last; ++t) {
      if (is_valid[t] == 0) {
        continue;
      }
      const float* const x = logits.as<float>() + t * experts;
      to[0] += entropy_of_scores(x, lse.as<float>()[t], score.data(), config);
      if (config.experts_choose) {
        continue;
      }
      const std::int32_t* selected = expert.as<std::int32_t>() + t * k_count;
      if (config.second_by_chance) {
        select_top(ranked, x, experts, 2);
        selected = ranked;
      }
      if (const Margin margin = margin_of(x, selected, score.data(), config); margin.exists) {
        to[1] += static_cast<double>(margin.least_chosen) - static_cast<double>(margin.greatest_other);
        to[2] += 1;
      }
    }
  });
  for (std::size_t i = 0; i < of_run.size(); ++i) {
    sums.as<double>()[i % 3] += of_run[i];
  }
}

}  // namespace orthant
