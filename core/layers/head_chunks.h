// How many tokens' logits the head makes at a time: never all of a large vocabulary's, which can exceed the model.
#pragma once

#include <algorithm>
#include <cstdint>

namespace orthant {

// Rows of a chunk of logits. Every chunk reads the matrix [V, d] twice, and its gradient once, and writes that. So
// there are rows enough for the products, not the matrix, to be what costs: 256 on a processor, and 2048 on a device
// with a memory of its own, which multiplies a hundred times as fast and reads as fast as ten processors. A small
// vocabulary's chunks are as large as they may be without leaving the processor's cache (4 MB in f32), or on a device
// without taking more memory than those of a vocabulary of 150,000 must (1.2 GB in f32, and half of that for their
// gradients in bf16): each chunk is launches too.
//
// vocabulary: the whole one, also where a rank has a slice of it. Chunks, and so the order in which gradients are
// summed, are then the same however it is divided.
constexpr std::int64_t tokens_a_chunk(std::int64_t vocabulary, bool asynchronous) {
  const std::int64_t rows = asynchronous ? 2048 : 256;
  const std::int64_t elements = asynchronous ? rows * 150000 : std::int64_t{1} << 20;
  return std::max(rows, elements / vocabulary);
}

}  // namespace orthant
