// grouped_gemm and grouped_gemm_tn: the experts' products, cut into blocks of bounded size that threads take in turn.
// An element's sum is the same in whatever block it is, so the result depends neither on the cut nor on who took what.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/expert_checks.h"
#include "experts/cpu/block_gemm.h"

namespace orthant {
namespace {

struct Block {
  std::int64_t expert, row, rows, column, columns;  // of the expert's C; row counts from the start of all rows
  std::int64_t work;                                // products
};

// Equal parts of at most `most`, as [begin, count) pairs handed to fn.
template <class F>
void cut(std::int64_t begin, std::int64_t end, std::int64_t most, F&& fn) {
  const std::int64_t parts = (end - begin + most - 1) / most;
  for (std::int64_t p = 0; p < parts; ++p) {
    const std::int64_t from = begin + (end - begin) * p / parts;
    fn(from, begin + (end - begin) * (p + 1) / parts - from);
  }
}

// The most columns of a block: fewer where one block would be so much of all the work that threads waited for it at the
// end. The rows' side is packed once a block, so narrow ones cost more: 64 columns only where a thread would have none.
std::int64_t most_columns(std::int64_t work_a_column, std::int64_t all_work, int threads) {
  std::int64_t columns = block_columns;
  if (threads > 1 && columns * work_a_column > all_work / (4 * threads)) {
    columns /= 2;
  }
  if (threads > 1 && columns * work_a_column > all_work / threads) {
    columns /= 2;
  }
  return columns;
}

// Large blocks first, so that the threads end together. Dynamic: blocks of crowded and of nearly empty experts cost
// differently.
template <class F>
void for_each_block(int threads, std::vector<Block> blocks, F&& fn) {
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.work > b.work; });
  const int count = static_cast<int>(blocks.size());
#pragma omp parallel num_threads(std::clamp(count, 1, threads)) if (count > 1 && threads > 1)
  {
    BlockGemm gemm;
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < count; ++i) {
      fn(gemm, blocks[i]);
    }
  }
}

// The experts' first rows, and the end of the last.
std::span<const std::int32_t> offsets_of(const char* operation, const Tensor& offset, std::int64_t rows) {
  const std::span<const std::int32_t> at(offset.as<std::int32_t>(), static_cast<std::size_t>(offset.elements()));
  require(at.front() == 0 && at.back() <= rows && std::is_sorted(at.begin(), at.end()),
          "{}: {} experts need {} ascending offsets from 0 to the {} rows at most, got some from {} to {}", operation,
          at.size() - 1, at.size(), rows, at.front(), at.back());
  return at;
}

}  // namespace

void CpuStream::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  const GroupedShape shape = check_grouped_gemm(c, a, b, offset, how);
  const std::int64_t rows = shape.rows, k = shape.k, n = shape.n;
  const std::span<const std::int32_t> first = offsets_of("grouped_gemm", offset, rows);

  std::vector<Block> blocks;
  for (std::int64_t e = 0; e < b.dim(0); ++e) {
    const std::size_t at = static_cast<std::size_t>(e);
    cut(first[at], first[at + 1], block_rows, [&](std::int64_t row, std::int64_t row_count) {
      const std::int64_t most = most_columns(row_count * k, rows * n * k, threads_);
      cut(0, n, most, [&](std::int64_t column, std::int64_t columns) {
        blocks.push_back({e, row, row_count, column, columns, row_count * columns * k});
      });
    });
  }
  with_float_type(a.dtype(), [&](auto type) {
    with_float_type(c.dtype(), [&](auto c_type) {
      using T = decltype(type);
      using C = decltype(c_type);
      for_each_block(threads_, blocks, [&](BlockGemm& gemm, const Block& block) {
        const Operand<T> left{a.as<T>() + block.row * k, k, true};
        const Operand<T> right{b.as<T>() + block.expert * n * k, how.transpose_b ? k : n, how.transpose_b};
        gemm.run(block.rows, block.columns, k, left, right.from(block.column), c.as<C>() + block.row * n + block.column,
                 n, how.beta != 0);
      });
    });
  });
}

void CpuStream::grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, float beta) {
  const GroupedShape shape = check_grouped_gemm_tn(c, a, b, offset, beta);
  const std::int64_t m = shape.m, n = shape.n;
  const std::span<const std::int32_t> first = offsets_of("grouped_gemm_tn", offset, shape.rows);

  std::vector<Block> blocks;
  for (std::int64_t e = 0; e < c.dim(0); ++e) {
    const std::int64_t count = first[static_cast<std::size_t>(e) + 1] - first[e];
    cut(0, m, block_rows, [&](std::int64_t row, std::int64_t rows) {
      const std::int64_t most = most_columns(rows * count, a.dim(0) * m * n, threads_);
      cut(0, n, most, [&](std::int64_t column, std::int64_t columns) {
        blocks.push_back({e, row, rows, column, columns, rows * columns * count});
      });
    });
  }
  with_float_type(a.dtype(), [&](auto type) {
    using T = decltype(type);
    for_each_block(threads_, blocks, [&](BlockGemm& gemm, const Block& block) {
      const std::int64_t begin = first[block.expert];
      const std::int64_t count = first[static_cast<std::size_t>(block.expert) + 1] - begin;
      const Operand<T> left{a.as<T>() + begin * m, m, false};
      const Operand<T> right{b.as<T>() + begin * n, n, false};
      gemm.run(block.rows, block.columns, count, left.from(block.row), right.from(block.column),
               c.as<float>() + (block.expert * m + block.row) * n + block.column, n, beta != 0);
    });
  });
}

}  // namespace orthant
