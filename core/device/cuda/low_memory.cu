// Storage of weights and optimizer states in fewer bits: rounding to bf16 by chance, states in 8 bits.
#include <orthant/random.h>

#include "core/base/state_codes.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int code_threads = 128;
constexpr std::int64_t code_most_blocks = 1 << 16;
constexpr int codes_of_thread = 4;
static_assert(state_block == warp_threads && state_block % codes_of_thread == 0);

__device__ inline std::uint64_t index_of(const SliceMap& at, std::int64_t row, std::int64_t column) {
  return static_cast<std::uint64_t>((at.row_begin + row) * at.global_columns + at.column_begin + column);
}

// Floor: the bytes of both; but ten rounds of Philox an element take longer.
struct StochasticCastBody {
  std::uint16_t* to;  // the bits of bf16
  const float* from;
  RandomKey key;
  SliceMap at;
  std::int64_t columns;
  template <int n>
  struct Loaded {
    float x;
  };
  __device__ void load(Loaded<1>& l, std::int64_t row, std::int64_t column) const {
    l.x = from[row * columns + column];
  }
  __device__ void store(const Loaded<1>& l, std::int64_t row, std::int64_t column) const {
    to[row * columns + column] = rounded_to_bf16(l.x, random_bits(key, index_of(at, row, column)));
  }
};

// A warp for each block. Floor: as above.
template <class Code>
__global__ void encode_blocks(std::uint8_t* code, std::uint8_t* exponent, const float* x, std::int64_t blocks,
                              std::int64_t columns, RandomKey key, SliceMap at) {
  constexpr int warps = code_threads / warp_threads;
  for (std::int64_t b = std::int64_t{blockIdx.x} * warps + warp(); b < blocks; b += std::int64_t{gridDim.x} * warps) {
    const std::int64_t i = b * state_block + lane();
    const std::uint32_t of_block = block_exponent(warp_max(bits_of_float(x[i]) & 0x7FFFFFFFu));
    code[i] = encoded<Code>(x[i], of_block, random_bits(key, index_of(at, i / columns, i % columns)));
    if (lane() == 0) {
      exponent[b] = static_cast<std::uint8_t>(of_block);
    }
  }
}

// Floor: the bytes of x and its codes.
template <class Code>
struct DecodeBody {
  float* x;
  const std::uint8_t* code;
  const std::uint8_t* exponent;
  template <int n>
  struct Loaded {
    Vector<std::uint8_t, n> code;
    std::uint32_t exponent;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t column) const {
    l.code = *reinterpret_cast<const Vector<std::uint8_t, n>*>(code + column);
    l.exponent = exponent[column / state_block];
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t column) const {
    float out[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      out[j] = decoded<Code>(l.code.v[j], l.exponent);
    }
    store_vector(x + column, out);
  }
};

}  // namespace

void CudaStream::stochastic_cast(const Tensor& to, const Tensor& from, const RandomKey& key, const SliceMap& at) {
  check_stochastic_cast(to, from);
  const StochasticCastBody body{to.as<std::uint16_t>(), from.as<float>(), key, at, from.dim(1)};
  for_each_chunk<1, 1>(*this, body, from.dim(0), from.dim(1), true);
}

void CudaStream::encode_state(const Tensor& code, const Tensor& exponent, const Tensor& x, StateCode how,
                              const RandomKey& key, const SliceMap& at) {
  check_encode_state(x, code, exponent, how);
  const std::int64_t blocks = x.elements() / state_block;
  if (blocks == 0) {
    return;
  }
  const Grid grid{blocks_for(blocks, code_threads / warp_threads, code_most_blocks), code_threads};
  with_state_code(how, [&](auto type) {
    launch(encode_blocks<decltype(type)>, grid, stream_, code.as<std::uint8_t>(), exponent.as<std::uint8_t>(),
           static_cast<const float*>(x.as<float>()), blocks, x.dim(1), key, at);
  });
}

void CudaStream::decode_state(const Tensor& x, const Tensor& code, const Tensor& exponent, StateCode how) {
  check_state_code("decode_state", x, code, exponent, how);
  with_state_code(how, [&](auto type) {
    const DecodeBody<decltype(type)> body{x.as<float>(), code.as<std::uint8_t>(), exponent.as<std::uint8_t>()};
    for_each_chunk<codes_of_thread, 2>(*this, body, 1, x.elements(), all_aligned<codes_of_thread>(body.x, body.code));
  });
}

}  // namespace orthant::cuda
