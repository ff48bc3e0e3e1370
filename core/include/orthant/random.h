// Counter-based random numbers: the same (key, index) gives the same number on every device and in every layout.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11 (Philox4x32-10).
// `index` is always a *global* index (of a weight element, or of token x feature), never a rank's own.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include <orthant/abi/operations.h>

#if defined(__CUDACC__)
#define ORTHANT_HOST_DEVICE __host__ __device__
#else
#define ORTHANT_HOST_DEVICE
#endif

namespace orthant {

// What a stream of numbers is for. Values are part of the checkpoint format: append only.
enum class Purpose : std::uint32_t {
  weight = 1,
  dropout = 2,
  jitter = 3,
  second_expert = 4,
  data_order = 5,
  synthetic = 6,
  rounding = 7,
  sampling = 8,
  test = 100
};

// Who asks for numbers: two 64-bit words. `site` is a hash of a parameter's name, or a layer's number; `step` is the
// optimizer step.
struct RandomKey {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::test;
  std::uint32_t site = 0;
  std::uint32_t step = 0;
};

struct Philox4 {
  std::uint32_t v[4];
};

ORTHANT_HOST_DEVICE inline Philox4 philox(const RandomKey& key, std::uint64_t index) {
  // The seed is the Philox key; purpose, site and step share two counter words with a fixed mixing.
  std::uint32_t k0 = static_cast<std::uint32_t>(key.seed) ^ (static_cast<std::uint32_t>(key.purpose) * 0x9E3779B9u);
  std::uint32_t k1 = static_cast<std::uint32_t>(key.seed >> 32) ^ key.site;
  std::uint32_t c0 = static_cast<std::uint32_t>(index), c1 = static_cast<std::uint32_t>(index >> 32);
  std::uint32_t c2 = key.step, c3 = static_cast<std::uint32_t>(key.purpose);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// 32 random bits. Four neighbours are served by one philox.
ORTHANT_HOST_DEVICE inline std::uint32_t random_bits(const RandomKey& key, std::uint64_t index) {
  const Philox4 r = philox(key, index / 4);
  const std::uint64_t place = index % 4;
  return place == 0 ? r.v[0] : place == 1 ? r.v[1] : place == 2 ? r.v[2] : r.v[3];
}

// In [0, 1), 24 bits: exact in fp32.
ORTHANT_HOST_DEVICE inline float uniform(const RandomKey& key, std::uint64_t index) {
  return static_cast<float>(philox(key, index).v[0] >> 8) * (1.0f / 16777216.0f);
}

// Standard normal by Box-Muller, in double so that host and device round alike.
ORTHANT_HOST_DEVICE inline float normal(const RandomKey& key, std::uint64_t index) {
  const Philox4 r = philox(key, index);
  const double u1 = (static_cast<double>(r.v[0]) + 1.0) * (1.0 / 4294967296.0);  // (0, 1]
  const double u2 = static_cast<double>(r.v[1]) * (1.0 / 4294967296.0);
  return static_cast<float>(std::sqrt(-2.0 * std::log(u1)) * std::cos(6.283185307179586 * u2));
}

// A uniformly random integer below `bound` (bias below 2^-32 * bound; bound < 2^32).
ORTHANT_HOST_DEVICE inline std::uint64_t below(const RandomKey& key, std::uint64_t index, std::uint64_t bound) {
  const Philox4 r = philox(key, index);
  return (std::uint64_t{r.v[0]} * bound) >> 32;
}

}  // namespace orthant
