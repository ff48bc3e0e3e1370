// Softmax cross-entropy, its gradient in place of the logits: three passes over a row while it is in cache.
#include <cmath>
#include <limits>

#include "core/cpu/bf16.h"
#include "core/cpu/check.h"
#include "core/cpu/cpu_stream.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace orthant {
namespace {

// Replaces logits by scale * (softmax - onehot(label)); returns -log softmax[label]. work: v floats, or the logits
// themselves if they are fp32.
template <class T>
float row_loss(T* logits, float* work, std::int64_t v, std::int64_t label, float scale) {
  float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < v; ++j) {
    const float x = to_float(logits[j]);
    top = x > top ? x : top;
  }
  const float chosen = to_float(logits[label]);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < v; ++j) {
    const float e = fast_exp(to_float(logits[j]) - top);
    work[j] = e;
    sum += e;
  }
  const float factor = scale / sum;
  const float correct = factor * work[label] - scale;
#pragma omp simd
  for (std::int64_t j = 0; j < v; ++j) {
    logits[j] = from_float<T>(factor * work[j]);
  }
  logits[label] = from_float<T>(correct);
  return std::log(sum) - (chosen - top);
}

}  // namespace

void CpuStream::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) {
  require_float("cross_entropy", "logits", logits);
  require_rank("cross_entropy", "logits", logits, 2);
  const std::int64_t rows = logits.dim(0), v = logits.dim(1);
  require_dtype("cross_entropy", "loss", loss, {DType::f32});
  require_elements("cross_entropy", "loss", loss, rows);
  require_dtype("cross_entropy", "label", label, {DType::i32});
  require_elements("cross_entropy", "label", label, rows);
  const auto* labels = label.as<std::int32_t>();
  for (std::int64_t t = 0; t < rows; ++t) {
    require(labels[t] < v, "cross_entropy: label {} of row {} is outside the logits {}", labels[t], t,
            logits.shape().to_string());
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

}  // namespace orthant
