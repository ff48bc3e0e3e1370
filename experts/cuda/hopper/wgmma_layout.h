// How operands of Hopper's matrix instructions lie in shared memory here, and the descriptors that say so. Pure.
// Source: PTX ISA, wgmma.mma_async: "Shared Memory Matrix Layout", "Matrix Descriptor Format".
//
// Both kinds of operand are lines of 128 bytes, 64 elements, the first at a multiple of 1024 bytes. By rows (the ISA's
// K-major): line r holds 64 steps of k of row r (of A; column of B). By steps (MN-major): line 64 b + i holds the
// elements 64 b .. of step i. The 16-byte pieces of a line are swizzled within each eight lines, so that neither copies
// nor the matrix units meet in a bank.
#pragma once

#include <orthant/random.h>

#include <cstdint>

namespace orthant::cuda {

inline constexpr int line_bytes = 128, line_elements = 64, line_pieces = 8;

// Where a piece of a line lies, in bytes.
ORTHANT_HOST_DEVICE constexpr int at_line(int line, int piece) {
  return line * line_bytes + ((piece ^ (line & 7)) << 4);
}

// A matrix from `address` on: 128-byte swizzle; eight lines to the next eight: 1024 bytes; by steps, 64 elements to the
// next 64: 64 lines. (By rows the latter does not count.)
ORTHANT_HOST_DEVICE constexpr std::uint64_t wgmma_operand(std::uint32_t address, bool by_rows) {
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62;
  const std::uint64_t leading = by_rows ? 1 : line_elements * line_bytes / 16, stride = 8 * line_bytes / 16;
  return swizzle_128 | stride << 32 | leading << 16 | (address & 0x3FFFF) >> 4;
}

// From a descriptor to that of the matrix `step` steps of k further on, a multiple of 16 below 64.
ORTHANT_HOST_DEVICE constexpr std::uint64_t advanced(std::uint64_t operand, bool by_rows, int step) {
  return operand + static_cast<std::uint64_t>(by_rows ? step * 2 / 16 : step * line_bytes / 16);
}

}  // namespace orthant::cuda
