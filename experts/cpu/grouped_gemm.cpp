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

// Equal parts of at most `most`, but for whole numbers of `unit`, as [begin, count) pairs handed to fn.
template <class F>
void cut(std::int64_t begin, std::int64_t end, std::int64_t most, std::int64_t unit, F&& fn) {
  const std::int64_t units = (end - begin + unit - 1) / unit, most_units = std::max<std::int64_t>(1, most / unit);
  const std::int64_t parts = (units + most_units - 1) / most_units;
  for (std::int64_t p = 0; p < parts; ++p) {
    const std::int64_t from = begin + units * p / parts * unit;
    fn(from, std::min(end, begin + units * (p + 1) / parts * unit) - from);
  }
}

// The most rows and columns of a block of an expert's C [rows, columns], an element of which is `depth` products. Both
// sides are packed once a block, so large ones cost least; smaller where threads would wait for one another at the end.
struct BlockSize {
  std::int64_t rows, columns;
};
BlockSize block_size(std::int64_t rows, std::int64_t columns, std::int64_t depth, std::int64_t all_work, int threads) {
  BlockSize most{block_rows, block_columns};
  const auto is_over = [&](std::int64_t share) {
    return threads > 1 && std::min(rows, most.rows) * std::min(columns, most.columns) * depth > all_work / share;
  };
  if (is_over(8 * threads)) {
    most.columns = block_columns / 2;
  }
  if (is_over(8 * threads)) {
    most.rows = block_rows / 2;
  }
  if (is_over(4 * threads)) {
    most.columns = block_columns / 4;
  }
  if (is_over(threads)) {
    most.columns = block_columns / 8;
  }
  return most;
}

// Calls fn(first row, rows, first column, columns) for the blocks of C [begin, end) x [0, columns).
template <class F>
void cut_blocks(std::int64_t begin, std::int64_t end, std::int64_t columns, BlockSize most, F&& fn) {
  constexpr std::int64_t row_unit = 12, column_unit = 128;  // whole register tiles of every processor
  cut(begin, end, most.rows, row_unit, [&](std::int64_t row, std::int64_t rows) {
    cut(0, columns, most.columns, std::min(column_unit, most.columns),
        [&](std::int64_t column, std::int64_t count) { fn(row, rows, column, count); });
  });
}

// Calls fn(memory's BlockGemm, block, the block that the same thread is likely to take next, or null). Large blocks
// first, so that the threads end together. Dynamic: blocks of crowded and of nearly empty experts cost differently.
template <class F>
void for_each_block(CpuStream& stream, std::vector<Block> blocks, F&& fn) {
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.work > b.work; });
  const int count = static_cast<int>(blocks.size()), threads = std::clamp(count, 1, stream.threads());
  auto* const memory =
      static_cast<std::byte*>(stream.scratch(0, static_cast<std::size_t>(threads) * BlockGemm::bytes()));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int team = omp_get_num_threads();
    BlockGemm gemm(memory + static_cast<std::size_t>(team > 1 ? omp_get_thread_num() : 0) * BlockGemm::bytes());
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < count; ++i) {
      fn(gemm, blocks[i], i + team < count ? &blocks[i + team] : nullptr);
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
    const std::int64_t begin = first[static_cast<std::size_t>(e)], end = first[static_cast<std::size_t>(e) + 1];
    cut_blocks(begin, end, n, block_size(end - begin, n, k, rows * n * k, threads_),
               [&](std::int64_t row, std::int64_t row_count, std::int64_t column, std::int64_t columns) {
                 blocks.push_back({e, row, row_count, column, columns, row_count * columns * k});
               });
  }
  with_float_type(a.dtype(), [&](auto type) {
    with_float_type(c.dtype(), [&](auto c_type) {
      using T = decltype(type);
      using C = decltype(c_type);
      const auto right = [&](const Block& block) {
        return Operand<T>{b.as<T>() + block.expert * n * k, how.transpose_b ? k : n, how.transpose_b}.from(
            block.column);
      };
      const auto left = [&](const Block& block) { return Operand<T>{a.as<T>() + block.row * k, k, true}; };
      for_each_block(*this, blocks, [&](BlockGemm& gemm, const Block& block, const Block* next) {
        NextBlock<T> then;
        if (next != nullptr) {
          then = {left(*next), right(*next), next->rows, next->columns, k};
        }
        gemm.run(block.rows, block.columns, k, left(block), right(block), c.as<C>() + block.row * n + block.column, n,
                 how.beta != 0 ? Store::add : Store::set, then);
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
    cut_blocks(0, m, n, block_size(m, n, count, a.dim(0) * m * n, threads_),
               [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
                 blocks.push_back({e, row, rows, column, columns, rows * columns * count});
               });
  }
  // Gradients so large are in no cache when they are read again.
  constexpr std::int64_t large = std::int64_t{32} << 20;
  const Store how = beta != 0 ? Store::add : c.elements() * 4 >= large ? Store::past_caches : Store::set;
  with_float_type(a.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto first_row = [&](const Block& block) { return std::int64_t{first[block.expert]}; };
    const auto count = [&](const Block& block) {
      return first[static_cast<std::size_t>(block.expert) + 1] - first_row(block);
    };
    const auto left = [&](const Block& block) {
      return Operand<T>{a.as<T>() + first_row(block) * m, m, false}.from(block.row);
    };
    const auto right = [&](const Block& block) {
      return Operand<T>{b.as<T>() + first_row(block) * n, n, false}.from(block.column);
    };
    for_each_block(*this, blocks, [&](BlockGemm& gemm, const Block& block, const Block* next) {
      NextBlock<T> then;
      if (next != nullptr) {
        then = {left(*next), right(*next), next->rows, next->columns, count(*next)};
      }
      gemm.run(block.rows, block.columns, count(block), left(block), right(block),
               c.as<float>() + (block.expert * m + block.row) * n + block.column, n, how, then);
    });
  });
}

}  // namespace orthant
