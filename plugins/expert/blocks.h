// Rows that travel together: blocks, known by number, that lie one after another in a tensor.
#pragma once

#include <orthant/ops.h>

#include <span>
#include <vector>

namespace orthant::expert {

struct Blocks {
  std::span<const std::int64_t> rows;  // of each block, by number
  std::vector<std::size_t> order;      // the blocks of the tensor, as they lie

  std::int64_t total() const;
  // Rows of equal shares of `order`: those of one member of a group after another.
  std::vector<std::int64_t> by_member(int members) const;
};

// Copies the blocks that both tensors have, from where they lie in one to where they lie in the other.
void copy_blocks(const Tensor& to, const Blocks& to_blocks, const Tensor& from, const Blocks& from_blocks, Stream& s);

}  // namespace orthant::expert
