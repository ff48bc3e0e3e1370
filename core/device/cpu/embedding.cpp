// Rows of a table, and the sums of gradients back into it.
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

// An id may be of a row elsewhere only where the table is a slice.
void check_ids(const char* operation, const Tensor& table, const Tensor& id, std::int64_t first_row) {
  const auto* ids = id.as<std::int32_t>();
  for (std::int64_t t = 0; t < id.elements(); ++t) {
    require(ids[t] >= 0 && (first_row != Stream::whole_table || ids[t] < table.dim(0)),
            "{}: id {} of token {} is outside the table {}", operation, ids[t], t, table.shape());
  }
}

// The row of the table that an id names, or -1 where another slice holds it.
std::int64_t local_row(std::int64_t id, const Tensor& table, std::int64_t first_row) {
  const std::int64_t row = id - std::max<std::int64_t>(first_row, 0);
  return row >= 0 && row < table.dim(0) ? row : -1;
}

}  // namespace

void CpuStream::embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                          std::int64_t first_row) {
  check_embedding(y, table, id, first_row);
  check_ids("embedding", table, id, first_row);
  const std::int64_t d = y.dim(1);
  const auto* ids = id.as<std::int32_t>();
  with_float_type(y.dtype(), [&](auto to_type) {
    with_float_type(table.dtype(), [&](auto from_type) {
      using Y = decltype(to_type);
      const auto* rows = table.as<decltype(from_type)>();
      parallel_for(threads_, y.dim(0), 8192 / (d + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          Y* out = y.as<Y>() + t * d;
          const std::int64_t at = local_row(ids[t], table, first_row);
          if (at < 0) {
            if (!accumulate) {
              std::fill(out, out + d, from_float<Y>(0.0f));
            }
            continue;
          }
          const auto* row = rows + at * d;
          if (accumulate) {
#pragma omp simd
            for (std::int64_t j = 0; j < d; ++j) {
              out[j] = from_float<Y>(to_float(out[j]) + to_float(row[j]));
            }
          } else {
#pragma omp simd
            for (std::int64_t j = 0; j < d; ++j) {
              out[j] = from_float<Y>(to_float(row[j]));
            }
          }
        }
      });
    });
  });
}

// Threads split the columns, so that each element's sum runs over the tokens in order.
void CpuStream::embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id, std::int64_t first_row) {
  check_embedding_backward(dtable, dy, id, first_row);
  check_ids("embedding_backward", dtable, id, first_row);
  const std::int64_t d = dy.dim(1);
  const auto* ids = id.as<std::int32_t>();
  with_float_type(dy.dtype(), [&](auto type) {
    const auto* from = dy.as<decltype(type)>();
    parallel_for(threads_, d, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < dy.dim(0); ++t) {
        const std::int64_t at = local_row(ids[t], dtable, first_row);
        if (at < 0) {
          continue;
        }
        float* row = dtable.as<float>() + at * d;
#pragma omp simd
        for (std::int64_t j = begin; j < end; ++j) {
          row[j] += to_float(from[t * d + j]);
        }
      }
    });
  });
}

}  // namespace orthant
