// Softmax cross-entropy, its gradient in place of the logits: three passes over a row while it is in cache.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/cpu/vector_math.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
float greatest(const T* logits, std::int64_t v) {
  float top = -infinity;
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < v; ++j) {
    const float x = to_float(logits[j]);
    top = x > top ? x : top;
  }
  return top;
}

// The sum of exp(logits[j] - shift). keep: each goes to work[j], which may be the logits themselves.
template <bool keep, class T>
float sum_of_exponentials(const T* logits, std::int64_t v, float shift, float* work) {
  constexpr std::int64_t chunk = 1024;  // columns that are added in fp32; chunks are added in fp64
  double whole = 0;
  for (std::int64_t begin = 0; begin < v; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, v);
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (std::int64_t j = begin; j < end; ++j) {
      const float e = fast_exp(to_float(logits[j]) - shift);
      if constexpr (keep) {
        work[j] = e;
      }
      part += e;
    }
    whole += part;
  }
  return static_cast<float>(whole);
}

// Replaces logits by scale * (softmax - onehot(label)); returns -log softmax[label]. work: v floats, or the logits
// themselves if they are fp32.
template <class T>
float row_loss(T* logits, float* work, std::int64_t v, std::int64_t label, float scale) {
  const float top = greatest(logits, v);
  const float chosen = to_float(logits[label]);
  const float sum = sum_of_exponentials<true>(logits, v, top, work);
  const float factor = scale / sum;
  const float correct = factor * work[label] - scale;
#pragma omp simd
  for (std::int64_t j = 0; j < v; ++j) {
    logits[j] = from_float<T>(factor * work[j]);
  }
  logits[label] = from_float<T>(correct);
  return std::log(sum) - (chosen - top);
}

// (max, sum of exp(l - max), logit of the label) of a slice of a row; label: its column here, or anything outside.
template <class T>
void row_stats(float* stats, const T* logits, std::int64_t v, std::int64_t label) {
  const float top = greatest(logits, v);
  // A slice of nothing but -infinity adds 0 to the row's sum; only a whole row of it has no softmax.
  const float shift = top > -infinity ? top : 0.0f;
  stats[0] = top;
  stats[1] = sum_of_exponentials<false>(logits, v, shift, nullptr);
  stats[2] = label >= 0 && label < v ? to_float(logits[label]) : -infinity;
}

// The stats of a whole row from those of its slices, `stride` floats apart, in their order.
void merge_stats(float* merged, const float* stats, std::int64_t slices, std::int64_t stride) {
  float top = -infinity, chosen = top, sum = 0.0f;
  for (std::int64_t r = 0; r < slices; ++r) {
    const float* slice = stats + r * stride;
    top = slice[0] > top ? slice[0] : top;
    chosen = slice[2] > chosen ? slice[2] : chosen;
  }
  for (std::int64_t r = 0; r < slices; ++r) {
    sum += stats[r * stride + 1] * fast_exp(stats[r * stride] - top);
  }
  merged[0] = top;
  merged[1] = sum;
  merged[2] = chosen;
}

}  // namespace

void CpuStream::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) {
  check_cross_entropy(loss, logits, label);
  const std::int64_t rows = logits.dim(0), v = logits.dim(1);
  const auto* labels = label.as<std::int32_t>();
  for (std::int64_t t = 0; t < rows; ++t) {
    require(labels[t] < v, "cross_entropy: label {} of row {} is outside the logits {}", labels[t], t, logits.shape());
  }
  // fp32 rows of the exponentials for bf16 logits, one per part.
  const bool wide = logits.dtype() == DType::bf16;
  auto* work = static_cast<float*>(scratch(0, wide ? static_cast<std::size_t>(threads_ * v) * sizeof(float) : 0));
  with_float_type(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, rows, 8192 / (v + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      float* mine = work + omp_get_thread_num() * v;
      for (std::int64_t t = begin; t < end; ++t) {
        T* row = logits.as<T>() + t * v;
        if (labels[t] < 0) {
          std::fill(row, row + v, from_float<T>(0.0f));
          loss.as<float>()[t] = 0.0f;
        } else if constexpr (std::is_same_v<T, float>) {
          loss.as<float>()[t] = row_loss(row, row, v, labels[t], scale);
        } else {
          loss.as<float>()[t] = row_loss(row, mine, v, labels[t], scale);
        }
      }
    });
  });
}

void CpuStream::cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                    std::int64_t first_column) {
  check_cross_entropy_stats(stats, logits, label, first_column);
  const std::int64_t rows = logits.dim(0), v = logits.dim(1);
  const auto* labels = label.as<std::int32_t>();
  with_float_type(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, rows, 8192 / (v + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        row_stats(stats.as<float>() + t * 3, logits.as<T>() + t * v, v, labels[t] < 0 ? -1 : labels[t] - first_column);
      }
    });
  });
}

void CpuStream::cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                         const Tensor& stats, std::int64_t first_column, float scale) {
  check_cross_entropy_from_stats(loss, logits, label, stats, first_column);
  const std::int64_t rows = logits.dim(0), v = logits.dim(1);
  const auto* labels = label.as<std::int32_t>();
  with_float_type(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, rows, 8192 / (v + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        T* row = logits.as<T>() + t * v;
        if (labels[t] < 0) {
          std::fill(row, row + v, from_float<T>(0.0f));
          loss.as<float>()[t] = 0.0f;
          continue;
        }
        float whole[3];
        merge_stats(whole, stats.as<float>() + t * 3, stats.dim(0), rows * 3);
        const float top = whole[0], factor = scale / whole[1];
        const std::int64_t own = labels[t] - first_column;  // the label's column, if it is here
        const bool here = own >= 0 && own < v;
        const float correct = here ? factor * fast_exp(to_float(row[own]) - top) - scale : 0.0f;
#pragma omp simd
        for (std::int64_t j = 0; j < v; ++j) {
          row[j] = from_float<T>(factor * fast_exp(to_float(row[j]) - top));
        }
        if (here) {
          row[own] = from_float<T>(correct);
        }
        loss.as<float>()[t] = std::log(whole[1]) - (whole[2] - top);
      }
    });
  });
}

}  // namespace orthant
