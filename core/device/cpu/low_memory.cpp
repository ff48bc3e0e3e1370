// Storage of weights and optimizer states in fewer bits: rounding to bf16 by chance, states in 8 bits.
#include <algorithm>

#include "core/base/state_codes.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t element_grain = 1 << 13;
constexpr std::int64_t most_words = 256;  // of one call of random_words

// words[i] = random_bits(key, first + i), for i < count <= most_words.
void random_words(std::uint32_t* words, const RandomKey& key, std::uint64_t first, std::int64_t count) {
  constexpr std::int64_t most_quads = most_words / 4 + 1;
  std::uint32_t quads[most_quads][4];
  const std::uint64_t quad = first / 4;
  const std::int64_t skip = static_cast<std::int64_t>(first % 4);
  const std::int64_t wanted = (skip + count + 3) / 4;
#pragma omp simd
  for (std::int64_t q = 0; q < wanted; ++q) {
    const Philox4 r = philox(key, quad + static_cast<std::uint64_t>(q));
    quads[q][0] = r.v[0];
    quads[q][1] = r.v[1];
    quads[q][2] = r.v[2];
    quads[q][3] = r.v[3];
  }
  std::copy_n(&quads[0][0] + skip, count, words);
}

std::uint64_t index_of(const SliceMap& at, std::int64_t row, std::int64_t column) {
  return static_cast<std::uint64_t>((at.row_begin + row) * at.global_columns + at.column_begin + column);
}

}  // namespace

void CpuStream::stochastic_cast(const Tensor& to, const Tensor& from, const RandomKey& key, const SliceMap& at) {
  check_stochastic_cast(to, from);
  const std::int64_t columns = from.dim(1), runs = (columns + most_words - 1) / most_words;
  parallel_for(threads_, from.dim(0) * runs, element_grain / most_words, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t row = r / runs, column = r % runs * most_words;
      const std::int64_t count = std::min(most_words, columns - column);
      const float* x = from.as<float>() + row * columns + column;
      BFloat16* y = to.as<BFloat16>() + row * columns + column;
      std::uint32_t words[most_words];
      random_words(words, key, index_of(at, row, column), count);
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        y[i].bits = rounded_to_bf16(x[i], words[i]);
      }
    }
  });
}

void CpuStream::encode_state(const Tensor& code, const Tensor& exponent, const Tensor& x, StateCode how,
                             const RandomKey& key, const SliceMap& at) {
  check_encode_state(x, code, exponent, how);
  static_assert(most_words % state_block == 0);
  const std::int64_t columns = x.dim(1), runs = (columns + most_words - 1) / most_words;
  with_state_code(how, [&](auto type) {
    using Code = decltype(type);
    parallel_for(threads_, x.dim(0) * runs, element_grain / most_words, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t row = r / runs, column = r % runs * most_words, first = row * columns + column;
        const std::int64_t count = std::min(most_words, columns - column);
        std::uint32_t words[most_words];
        random_words(words, key, index_of(at, row, column), count);
        for (std::int64_t b = 0; b < count; b += state_block) {
          const float* from = x.as<float>() + first + b;
          auto* to = code.as<std::uint8_t>() + first + b;
          std::uint32_t size = 0;
          for (std::int64_t i = 0; i < state_block; ++i) {
            size = std::max(size, bits_of_float(from[i]) & 0x7FFFFFFFu);
          }
          const std::uint32_t of_block = block_exponent(size);
          exponent.as<std::uint8_t>()[(first + b) / state_block] = static_cast<std::uint8_t>(of_block);
#pragma omp simd
          for (std::int64_t i = 0; i < state_block; ++i) {
            to[i] = encoded<Code>(from[i], of_block, words[b + i]);
          }
        }
      }
    });
  });
}

void CpuStream::decode_state(const Tensor& x, const Tensor& code, const Tensor& exponent, StateCode how) {
  check_state_code("decode_state", x, code, exponent, how);
  const std::int64_t blocks = x.elements() / state_block;
  with_state_code(how, [&](auto type) {
    using Code = decltype(type);
    parallel_for(threads_, blocks, element_grain / state_block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::uint32_t of_block = exponent.as<std::uint8_t>()[b];
        const auto* from = code.as<std::uint8_t>() + b * state_block;
        float* to = x.as<float>() + b * state_block;
#pragma omp simd
        for (std::int64_t i = 0; i < state_block; ++i) {
          to[i] = decoded<Code>(from[i], of_block);
        }
      }
    });
  });
}

}  // namespace orthant
