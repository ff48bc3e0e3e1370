// Rows of a table. embedding_backward.cu: the sums of gradients back into it.
#include <limits>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// y [T, d], table [V_r, d]. Floor: y written (and read, to accumulate), a row of the table read for each token.
template <class Y, class W>
struct LookUpBody {
  Y* y;
  const W* table;
  const std::int32_t* id;
  std::int64_t columns, table_rows, first_row;
  bool whole_table, accumulate;
  template <int n>
  struct Loaded {
    float sum[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t token, std::int64_t column) const {
    const std::int64_t at = id[token] - first_row;
    const bool here = at >= 0 && at < table_rows;
    // An id that no table has: the host cannot see it here, so the result must show it.
    const bool wrong = id[token] < 0 || (whole_table && !here);
    float row[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      row[i] = wrong ? not_a_number : 0.0f;
      l.sum[i] = 0.0f;
    }
    if (here) {
      load_vector(row, table + at * columns + column);
    }
    if (accumulate) {
      load_vector(l.sum, y + token * columns + column);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      l.sum[i] += row[i];
    }
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t token, std::int64_t column) const {
    store_vector(y + token * columns + column, l.sum);
  }
};

}  // namespace

// Ids outside the whole table give NaN, which the loss shows.
void CudaStream::embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                           std::int64_t first_row) {
  check_embedding(y, table, id, first_row);
  with_float_type(y.dtype(), [&](auto to_type) {
    with_float_type(table.dtype(), [&](auto from_type) {
      using Y = decltype(to_type);
      using W = decltype(from_type);
      const bool whole = first_row == whole_table;
      const LookUpBody<Y, W> body{y.as<Y>(), table.as<W>(), id.as<std::int32_t>(),
                                  y.dim(1),  table.dim(0),  whole ? 0 : first_row,
                                  whole,     accumulate};
      // One token alone could have any d, but not its row of the table.
      const bool aligned = y.dim(1) % 8 == 0 && all_aligned<8>(body.y, body.table);
      for_each_chunk<8, 2>(*this, body, y.dim(0), y.dim(1), aligned);
    });
  });
}

}  // namespace orthant::cuda
