#include "blocks.h"

namespace orthant::expert {

std::int64_t Blocks::total() const {
  std::int64_t sum = 0;
  for (std::size_t block : order) {
    sum += rows[block];
  }
  return sum;
}

std::vector<std::int64_t> Blocks::by_member(int members) const {
  std::vector<std::int64_t> sums(members, 0);
  const std::size_t each = order.size() / sums.size();
  for (std::size_t i = 0; i < order.size(); ++i) {
    sums[i / each] += rows[order[i]];
  }
  return sums;
}

namespace {

constexpr std::int64_t absent = -1;

// The first row of each block, by number.
std::vector<std::int64_t> begins(const Blocks& blocks) {
  std::vector<std::int64_t> begin(blocks.rows.size(), absent);
  std::int64_t at = 0;
  for (std::size_t block : blocks.order) {
    begin[block] = at;
    at += blocks.rows[block];
  }
  return begin;
}

}  // namespace

void copy_blocks(const Tensor& to, const Blocks& to_blocks, const Tensor& from, const Blocks& from_blocks, Stream& s) {
  const std::vector<std::int64_t> begin = begins(from_blocks);
  std::vector<RowRun> runs;
  std::int64_t at = 0;
  for (std::size_t block : to_blocks.order) {
    const std::int64_t rows = to_blocks.rows[block];
    if (begin[block] != absent && rows > 0) {
      RowRun* last = runs.empty() ? nullptr : &runs.back();
      if (last != nullptr && last->from + last->rows == begin[block] && last->to + last->rows == at) {
        last->rows += rows;
      } else {
        runs.push_back({begin[block], at, rows});
      }
    }
    at += rows;
  }
  s.copy_rows(to, from, runs);
}

}  // namespace orthant::expert
