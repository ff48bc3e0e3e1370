// A warp group's matrix products under the shim: values against a loop on the host, for operands that the test itself
// lays out as the PTX ISA draws them; and what must be noticed when a wait or a fence is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/device/cuda/tensor_core.h"
#include "experts/cuda/hopper/cluster.h"
#include "experts/cuda/hopper/wgmma.h"

namespace orthant::cuda::warpgroup_test {
namespace {

using ::testing::HasSubstr;

constexpr int m = 64, n = wgmma_columns, k = 16;
constexpr std::size_t shared_bytes = 64 * 1024;

std::uint16_t bits_of(float x) {
  return bf16(x).bits;
}

// The ISA's 128-byte swizzle: in each 1024 bytes, the 16-byte piece of row r (of 128 bytes) is exchanged with piece ^
// r.
std::size_t swizzled(std::size_t byte) {
  const std::size_t row = byte / 128 % 8, piece = byte / 16 % 8;
  return byte / 128 * 128 + (piece ^ row) * 16 + byte % 16;
}

// An operand of `outer` rows (of A; columns of B) and 64 steps of k, in `bytes` of shared memory.
// By rows: row r has 64 steps in 128 bytes. By steps: 64 rows of one step in 128 bytes, then the next step; after 64
// steps the next 64 rows.
std::vector<std::byte> laid_out(const std::vector<float>& x, int outer, bool by_rows) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(outer) * 128);
  for (int r = 0; r < outer; ++r) {
    for (int i = 0; i < 64; ++i) {
      const int at = by_rows ? r * 128 + i * 2 : (r / 64 * 64 + i) * 128 + r % 64 * 2;
      const std::uint16_t bits = bits_of(x[r * 64 + i]);
      std::memcpy(bytes.data() + swizzled(static_cast<std::size_t>(at)), &bits, 2);
    }
  }
  return bytes;
}

struct Operands {
  const std::byte *a, *b;  // a: 64 rows, b: 192
  int step;                // the 16 steps of k from here on
};

// sums [64, 192] = A B^T, of 64 rows and 192 columns laid out by the host.
template <bool a_by_rows, bool b_by_rows>
__global__ void product(float* c, Operands in) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const std::uint32_t begin = shared_address(memory), aligned = (begin + 1023) / 1024 * 1024;
  unsigned char* const lines = memory + (aligned - begin);
  for (int i = static_cast<int>(threadIdx.x); i < (m + n) * 128; i += static_cast<int>(blockDim.x)) {
    lines[i] = static_cast<unsigned char>(i < m * 128 ? in.a[i] : in.b[i - m * 128]);
  }
  __syncthreads();
  WgmmaSums sums;
  for (float& sum : sums) {
    sum = 0.0f;
  }
  fence_async_proxy();
  begin_products();
  const std::uint64_t a = advanced(wgmma_operand(aligned, a_by_rows), a_by_rows, in.step);
  const std::uint64_t b = advanced(wgmma_operand(aligned + m * 128, b_by_rows), b_by_rows, in.step);
  multiply_later<a_by_rows, b_by_rows>(sums, a, b);
  end_products();
  wait_for_products<0>();
  for (int i = 0; i < held_sums; ++i) {
    const int row = warp() * 16 + lane() / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
    c[row * n + column] = sums[i];
  }
}

template <bool a_by_rows, bool b_by_rows>
void expect_product() {
  std::vector<float> a(m * 64), b(n * 64);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i * 37 % 23) - 11.0f;
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = static_cast<float>(i * 29 % 19) - 9.0f;
  }
  const std::vector<std::byte> in_a = laid_out(a, m, a_by_rows), in_b = laid_out(b, n, b_by_rows);
  for (const int step : {0, 16, 32, 48}) {
    std::vector<float> c(m * n);
    KernelLimits limits(simt::shared_limit());
    launch(product<a_by_rows, b_by_rows>, Grid{1, 128, {shared_bytes, &limits}}, nullptr, c.data(),
           Operands{in_a.data(), in_b.data(), step});
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        float sum = 0;
        for (int s = step; s < step + k; ++s) {
          sum += a[i * 64 + s] * b[j * 64 + s];
        }
        ASSERT_EQ(c[i * n + j], sum) << i << ", " << j << " from step " << step;
      }
    }
  }
}

TEST(SimtWarpGroup, MultipliesOperandsByRowsAndBySteps) {
  expect_product<true, true>();
  expect_product<true, false>();
  expect_product<false, true>();
  expect_product<false, false>();
}

// --- barriers and copies: 128 threads copy and 128 read, through two places in turns.
__global__ void passes_on(float* to, const float* from, int rounds) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const std::uint32_t begin = shared_address(memory), full = begin + 2 * 2048, empty = full + 16;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (threadIdx.x == 0) {
    for (unsigned place = 0; place < 2; ++place) {
      make_barrier(full + 8 * place, 128);
      make_barrier(empty + 8 * place, 128);
    }
  }
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const unsigned place = static_cast<unsigned>(round) % 2, turn = static_cast<unsigned>(round) / 2;
    const std::uint32_t at = begin + place * 2048 + static_cast<std::uint32_t>(thread) * 16;
    if (threadIdx.x < 128) {
      wait_for_phase(empty + 8 * place, (turn + 1) & 1);
      start_copy(at, from + round * 512 + thread * 4, thread != 5);
      arrive_after_copies(full + 8 * place);
    } else {
      wait_for_phase(full + 8 * place, turn & 1);
      const int other = 127 - thread;
      const auto* const seen = reinterpret_cast<const float*>(memory + place * 2048) + other * 4;
      for (int i = 0; i < 4; ++i) {
        to[round * 512 + other * 4 + i] = seen[i];
      }
      arrive_in_cluster(cluster_address(empty + 8 * place, 0));
    }
  }
}

TEST(SimtWarpGroup, CopiesArePassedOnThroughBarriers) {
  constexpr int rounds = 9;
  alignas(16) static float from[rounds * 512];
  std::vector<float> to(rounds * 512, -1.0f);
  for (int i = 0; i < rounds * 512; ++i) {
    from[i] = static_cast<float>(i + 1);
  }
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    simt::reseed(seed);
    launch(passes_on, Grid{1, 256, 2 * 2048 + 64}, nullptr, to.data(), from, rounds);
    for (int i = 0; i < rounds * 512; ++i) {
      ASSERT_EQ(to[i], i / 4 % 128 == 5 ? 0.0f : from[i]) << i;
    }
  }
}

// --- what is missing in each, by one warp group
enum class Missing {
  nothing,
  proxy_fence,
  begin,
  end,
  last_wait,
  copies_wait,
  base_alignment,
  address_mask,
  same_calls,
  no_barrier,
  place_overwritten
};

__global__ void lacks(float* c, const float* from, Missing missing) {
  const std::uint32_t begin = shared_address(dynamic_shared<unsigned char>()), aligned = (begin + 1023) / 1024 * 1024;
  const std::uint32_t barrier = aligned + (m + n) * 128;
  const auto copy_all = [&](bool there) {
    for (int i = static_cast<int>(threadIdx.x); i < (m + n) * 8; i += 128) {
      start_copy(aligned + static_cast<std::uint32_t>(i) * 16, from, there);
    }
    arrive_after_copies(barrier);
  };
  if (threadIdx.x == 0 && missing != Missing::no_barrier) {
    make_barrier(barrier, 128);
  }
  __syncthreads();
  copy_all(true);
  if (missing != Missing::copies_wait) {
    wait_for_phase(barrier, 0);
  }
  if (missing != Missing::proxy_fence) {
    fence_async_proxy();
  }
  WgmmaSums sums;
  for (float& sum : sums) {
    sum = 0.0f;
  }
  if (missing != Missing::begin) {
    begin_products();
  }
  const std::uint32_t off = missing == Missing::base_alignment ? 128 : 0;
  const std::uint32_t other = missing == Missing::same_calls && warp() == 2 ? 1024 : 0;
  const std::uint64_t uncut = missing == Missing::address_mask ? aligned >> 4 : 0;
  multiply_later<true, true>(sums, wgmma_operand(aligned + off + other, true) | uncut,
                             wgmma_operand(aligned + m * 128, true));
  if (missing != Missing::end) {
    end_products();
  }
  if (missing == Missing::place_overwritten) {
    copy_all(false);
  }
  if (missing != Missing::last_wait) {
    wait_for_products<0>();
  }
  c[threadIdx.x] = sums[0];
}

// The error, or "NaN" where sums were not there, or "right".
std::string outcome(Missing missing) {
  alignas(16) static const std::uint16_t ones[8] = {0x3F80, 0x3F80, 0x3F80, 0x3F80, 0x3F80, 0x3F80, 0x3F80, 0x3F80};
  std::vector<float> c(128, -1.0f);
  try {
    KernelLimits limits(simt::shared_limit());
    launch(lacks, Grid{1, 128, {shared_bytes, &limits}}, nullptr, c.data(), reinterpret_cast<const float*>(ones),
           missing);
  } catch (const Error& error) {
    return error.what();
  }
  for (const float sum : c) {
    if (sum != 16.0f) {
      return std::isnan(sum) ? "NaN" : "wrong";
    }
  }
  return "right";
}

TEST(SimtWarpGroup, WhatIsMissingShows) {
  EXPECT_EQ(outcome(Missing::nothing), "right");
  EXPECT_EQ(outcome(Missing::end), "NaN");
  EXPECT_EQ(outcome(Missing::last_wait), "NaN");
  EXPECT_THAT(outcome(Missing::copies_wait), HasSubstr("reads what a copy has not brought yet"));
  EXPECT_THAT(outcome(Missing::place_overwritten), HasSubstr("was written before wgmma.wait_group"));
  EXPECT_THAT(outcome(Missing::proxy_fence), HasSubstr("before fence.proxy.async"));
  EXPECT_THAT(outcome(Missing::begin), HasSubstr("before wgmma.fence"));
  EXPECT_THAT(outcome(Missing::base_alignment), HasSubstr("begins at multiples of 1024"));
  EXPECT_THAT(outcome(Missing::address_mask), HasSubstr("not cut to 18 bits"));
  EXPECT_THAT(outcome(Missing::same_calls), HasSubstr("must make the same calls"));
  EXPECT_THAT(outcome(Missing::no_barrier), HasSubstr("there is no barrier at shared address"));
}

__global__ void waits_for_nobody() {
  const std::uint32_t barrier = shared_address(dynamic_shared<unsigned char>());
  if (threadIdx.x == 0) {
    make_barrier(barrier, 65);
  }
  __syncthreads();
  arrive_in_cluster(cluster_address(barrier, 0));
  wait_for_phase(barrier, 0);
}

TEST(SimtWarpGroup, APhaseThatNeverEndsIsAnError) {
  try {
    launch(waits_for_nobody, Grid{1, 64, 64}, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no thread can go on: 64 threads"));
  }
}

// ldmatrix reads rows of 16 aligned bytes; a GPU stops at others.
__global__ void loads_unaligned(float* out, int elements) {
  const bf16* const rows = dynamic_shared<bf16>();
  std::uint32_t r[4];
  load_matrices<false>(r, rows + lane() * 8 + elements);
  out[lane()] = static_cast<float>(r[0]);
}

TEST(SimtMatrices, RowsThatAreNotAlignedAreAnError) {
  std::vector<float> out(32);
  launch(loads_unaligned, Grid{1, 32, 1024}, nullptr, out.data(), 0);
  try {
    launch(loads_unaligned, Grid{1, 32, 1024}, nullptr, out.data(), 4);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ldmatrix: a row at"));
  }
}

}  // namespace
}  // namespace orthant::cuda::warpgroup_test
