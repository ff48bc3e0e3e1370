// Scores of a token's experts, and the runs of tokens over which gates sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "core/device/cpu/parallel.h"
#include "core/device/cpu/part_sum.h"
#include "core/device/cpu/vector_math.h"

namespace orthant {

// softmax[e] of the logits for e in [0, experts); returns their logsumexp.
inline float softmax_row(float* softmax, const float* logits, std::int64_t experts) {
  float greatest = logits[0];
#pragma omp simd reduction(max : greatest)
  for (std::int64_t e = 0; e < experts; ++e) {
    greatest = logits[e] > greatest ? logits[e] : greatest;
  }
  const float sum = sum_by_parts(experts, [&](std::int64_t begin, std::int64_t end) {
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (std::int64_t e = begin; e < end; ++e) {
      softmax[e] = fast_exp(logits[e] - greatest);
      part += softmax[e];
    }
    return part;
  });
  const float scale = 1 / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) {
    softmax[e] *= scale;
  }
  return greatest + std::log(sum);
}

// The same from the logsumexp.
inline void softmax_row_again(float* softmax, const float* logits, float lse, std::int64_t experts) {
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) {
    softmax[e] = fast_exp(logits[e] - lse);
  }
}

// score[e] = sigmoid(logits[e]); returns their sum.
inline float sigmoid_row(float* score, const float* logits, std::int64_t experts) {
  return sum_by_parts(experts, [&](std::int64_t begin, std::int64_t end) {
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (std::int64_t e = begin; e < end; ++e) {
      score[e] = fast_sigmoid(logits[e]);
      part += score[e];
    }
    return part;
  });
}

// Calls fn(run, group, first, last) for every run [first, last) of at most 256 tokens of one group. A function of the
// groups alone, so that what is summed over runs does not depend on the number of threads.
struct Runs {
  std::int64_t groups, group_tokens;

  std::int64_t per_group() const { return (group_tokens + 255) / 256; }
  template <class F>
  void for_each(int threads, F&& fn) const {
    const std::int64_t grain = std::max<std::int64_t>(1, 64 / std::min<std::int64_t>(group_tokens, 256));
    parallel_for(threads, groups * per_group(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t run = begin; run < end; ++run) {
        const std::int64_t g = run / per_group(), first = g * group_tokens + run % per_group() * 256;
        fn(run, g, first, std::min(first + 256, (g + 1) * group_tokens));
      }
    });
  }
};

}  // namespace orthant
