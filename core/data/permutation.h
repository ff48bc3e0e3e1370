// Permutation: a random order of [0, size) that is computed, not stored.
//
// Source: a balanced Feistel network over the next even power of two with cycle walking (Black and Rogaway,
// "Ciphers with arbitrary finite domains", CT-RSA 2002); its round function is Philox.
#pragma once

#include <orthant/random.h>

#include <bit>
#include <cstdint>

namespace orthant {

class Permutation {
 public:
  // REQUIRES: size >= 1. The same key and size give the same order everywhere.
  Permutation(RandomKey key, std::uint64_t size) : key_(key), size_(size) {
    const int bits = size > 1 ? std::bit_width(size - 1) : 1;
    half_ = static_cast<unsigned>((bits + 1) / 2);
  }

  // What stands at place `i`. REQUIRES: i < size. Fewer than four walks on average.
  std::uint64_t operator()(std::uint64_t i) const {
    do {
      i = encrypt(i);
    } while (i >= size_);
    return i;
  }

 private:
  std::uint64_t encrypt(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = value >> half_, right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = philox(key_, (round << 32) | right).v[0];
      const std::uint64_t next = (left ^ mixed) & mask;
      left = right;
      right = next;
    }
    return (left << half_) | right;
  }

  RandomKey key_;
  std::uint64_t size_;
  unsigned half_;
};

}  // namespace orthant
