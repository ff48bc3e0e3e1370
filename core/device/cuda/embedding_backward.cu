// The gradient of an embedding: dtable[row] += the sum of dy over the tokens that have it, in token order.
//
// Tokens are sorted by row (token_sort.cu), and blocks sum fixed runs of the sorted tokens, however they are spread
// over the rows: one frequent id costs no more than many rare ones. A row that lies within a block is added to the
// table at once; one that reaches over several blocks leaves a partial sum in each, added up in order by a second
// kernel.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/cuda/token_sort.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int embedding_run = 64;  // sorted tokens of a block
constexpr int embedding_threads = 128;

struct Sorted {
  const std::int32_t *token, *row;  // [tokens], rows ascending; table_rows: not in the table
  std::int64_t tokens, table_rows;

  __device__ std::int64_t begin_of(std::int64_t block) const { return block * embedding_run; }
  __device__ std::int64_t end_of(std::int64_t block) const {
    return (block + 1) * embedding_run < tokens ? (block + 1) * embedding_run : tokens;
  }
  // Does the row of the block's first token begin in an earlier block? Its last one's go on in the next?
  __device__ bool open_before(std::int64_t block) const {
    return block > 0 && row[begin_of(block)] == row[begin_of(block) - 1];
  }
  __device__ bool open_behind(std::int64_t block) const {
    return end_of(block) < tokens && row[end_of(block)] == row[end_of(block) - 1];
  }
};

template <int n>
__device__ inline void add_to(float* to, const float (&sum)[n]) {
  float old[n];
  load_vector(old, to);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    old[i] += sum[i];
  }
  store_vector(to, old);
}

// Block (run of sorted tokens, columns). partial [runs, 2, d]: the sum of a row that began before, and of one that goes
// on behind (a row that does both lies in the former). Floor: dy read, the rows that occur read and written.
template <class T, int width>
__global__ void sum_runs(float* dtable, float* partial, const T* dy, Sorted sorted, std::int64_t d) {
  ORTHANT_SHARED(std::int32_t, token, [embedding_run]);
  ORTHANT_SHARED(std::int32_t, row, [embedding_run]);
  const std::int64_t block = blockIdx.x, begin = sorted.begin_of(block);
  const int count = static_cast<int>(sorted.end_of(block) - begin);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += embedding_threads) {
    token[i] = sorted.token[begin + i];
    row[i] = sorted.row[begin + i];
  }
  __syncthreads();
  const bool open_before = sorted.open_before(block), open_behind = sorted.open_behind(block);
  const std::int64_t column = (std::int64_t{blockIdx.y} * embedding_threads + threadIdx.x) * width;
  if (column >= d) {
    return;
  }
  constexpr int unroll = 4;
  float sum[width] = {};
  bool first_row = true;
  for (int first = 0; first < count && row[first] < sorted.table_rows; first += unroll) {
    float loaded[unroll][width];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (first + u < count && row[first + u] < sorted.table_rows) {
        load_vector(loaded[u], dy + token[first + u] * d + column);
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const int i = first + u;
      if (i < count && row[i] < sorted.table_rows) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          sum[j] += loaded[u][j];
        }
        const bool last = i + 1 == count;
        if (last || row[i + 1] != row[i]) {
          if (first_row && open_before) {
            store_vector(partial + block * 2 * d + column, sum);
          } else if (last && open_behind) {
            store_vector(partial + (block * 2 + 1) * d + column, sum);
          } else {
            add_to(dtable + row[i] * d + column, sum);
          }
          first_row = false;
#pragma unroll
          for (int j = 0; j < width; ++j) {
            sum[j] = 0.0f;
          }
        }
      }
    }
  }
}

// The rows that reach over several blocks, each by the block in which it begins.
template <int width>
__global__ void join_runs(float* dtable, const float* partial, Sorted sorted, std::int64_t d) {
  const std::int64_t block = blockIdx.x, last = sorted.end_of(block) - 1;
  const std::int32_t row = sorted.row[last];
  const bool begins_here = sorted.row[sorted.begin_of(block)] != row || !sorted.open_before(block);
  const std::int64_t column = (std::int64_t{blockIdx.y} * embedding_threads + threadIdx.x) * width;
  if (row >= sorted.table_rows || !begins_here || !sorted.open_behind(block) || column >= d) {
    return;
  }
  std::int64_t low = last + 1, high = sorted.tokens;  // the last token of the row lies in [low, high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (sorted.row[middle] == row ? low : high) = middle;
  }
  float sum[width];
  load_vector(sum, partial + (block * 2 + 1) * d + column);
#pragma unroll 4
  for (std::int64_t other = block + 1; other <= low / embedding_run; ++other) {
    float part[width];
    load_vector(part, partial + other * 2 * d + column);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      sum[j] += part[j];
    }
  }
  add_to(dtable + row * d + column, sum);
}

}  // namespace

// An id outside the whole table gets no gradient: its token's row of the forward pass was NaN.
void CudaStream::embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id, std::int64_t first_row) {
  check_embedding_backward(dtable, dy, id, first_row);
  const std::int64_t tokens = dy.dim(0), d = dy.dim(1), table_rows = dtable.dim(0);
  if (tokens == 0 || d == 0 || table_rows == 0) {
    return;
  }
  const TokenOrder order =
      sort_tokens(*this, id.as<std::int32_t>(), tokens, table_rows, std::max<std::int64_t>(first_row, 0));
  const Sorted sorted{order.token, order.row, tokens, table_rows};
  const unsigned runs = blocks_for(tokens, embedding_run);
  auto* partial = static_cast<float*>(scratch(1, runs * static_cast<std::size_t>(2 * d) * sizeof(float)));
  with_float_type(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int width = 4;
    if (d % width == 0 && all_aligned<width>(dtable.as<float>(), dy.as<T>())) {
      const Grid grid{dim3(runs, blocks_for(d, embedding_threads * width)), embedding_threads};
      launch(sum_runs<T, width>, grid, stream_, dtable.as<float>(), partial, dy.as<T>(), sorted, d);
      launch(join_runs<width>, grid, stream_, dtable.as<float>(), partial, sorted, d);
    } else {
      const Grid grid{dim3(runs, blocks_for(d, embedding_threads)), embedding_threads};
      launch(sum_runs<T, 1>, grid, stream_, dtable.as<float>(), partial, dy.as<T>(), sorted, d);
      launch(join_runs<1>, grid, stream_, dtable.as<float>(), partial, sorted, d);
    }
  });
}

}  // namespace orthant::cuda
