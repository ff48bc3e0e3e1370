// Tokens in the order of the table rows that they name, in token order within a row. For gradients of embeddings: sums
// in that order have the same bits each time.
//
// Least significant digit first, with the stable passes of a radix sort: each counts its digit in tiles of tokens, adds
// up the counts, and moves. No float atomics, no synchronisation with the host. Source: Satish, Harris and Garland,
// "Designing efficient sorting algorithms for manycore GPUs", 2009.
#pragma once

#include <cstdint>

#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {

// In the stream's scratch slot 0, until that is used again.
struct TokenOrder {
  const std::int32_t* token;  // [tokens]
  const std::int32_t* row;    // [tokens], ascending: id - first_row of each; table_rows where that is outside the table
};

// id i32[tokens]. REQUIRES: tokens, table_rows > 0, both below 2^31.
TokenOrder sort_tokens(CudaStream& stream, const std::int32_t* id, std::int64_t tokens, std::int64_t table_rows,
                       std::int64_t first_row);

}  // namespace orthant::cuda
