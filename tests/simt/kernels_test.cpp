// Kernels of the kinds that the project has, under the shim, against loops on the host.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "core/device/cuda/device_math.h"

namespace orthant::cuda::kernels_test {
namespace {

std::vector<float> numbers(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>((i * 2654435761u) % 1000) - 499.5f;
  }
  return x;
}

// y [n] = 2 x, grid-stride.
__global__ void doubled(float* y, const float* x, std::int64_t n) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    y[i] = 2 * __ldg(x + i);
  }
}

TEST(SimtKernels, EveryThreadOfEveryBlockRunsOnce) {
  for (const std::int64_t n : {1, 31, 32, 1000, 4097}) {
    const std::vector<float> x = numbers(static_cast<std::size_t>(n));
    std::vector<float> y(x.size());
    launch(doubled, Grid{blocks_for(n, 64, 20), 64}, nullptr, y.data(), x.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i], 2 * x[i]) << i << " of " << n;
    }
  }
  launch(doubled, Grid{blocks_for(0, 64), 64}, nullptr, nullptr, nullptr, 0);
}

__global__ void count_places(int* seen) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  atomicAdd(seen + block * blockDim.x + threadIdx.x, 1);
}

TEST(SimtKernels, GridsOfThreeDimensions) {
  std::vector<int> seen(3 * 4 * 5 * 96);
  launch(count_places, Grid{dim3(3, 4, 5), 96}, nullptr, seen.data());
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

// y [rows] = sums over x [rows, columns].
__global__ void row_sums(float* y, const float* x, std::int64_t columns) {
  float sum = 0;
  for (std::int64_t j = threadIdx.x; j < columns; j += blockDim.x) {
    sum += x[blockIdx.x * columns + j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    y[blockIdx.x] = sum;
  }
}

TEST(SimtKernels, BlockSumsHaveTheSameBitsInEveryOrderOfThreads) {
  constexpr std::int64_t rows = 5, columns = 777;
  const std::vector<float> x = numbers(rows * columns);
  for (const int threads : {32, 96, 256, 1024}) {
    std::vector<float> first;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      simt::reseed(seed);
      std::vector<float> y(rows);
      launch(row_sums, Grid{blocks_for(rows, 1), threads}, nullptr, y.data(), x.data(), columns);
      for (std::size_t r = 0; r < rows; ++r) {
        const double expected = std::accumulate(x.begin() + static_cast<std::ptrdiff_t>(r * columns),
                                                x.begin() + static_cast<std::ptrdiff_t>((r + 1) * columns), 0.0);
        EXPECT_NEAR(y[r], expected, 0.05) << threads << " threads";
      }
      first = seed == 0 ? y : first;
      EXPECT_EQ(y, first);
    }
  }
}

__global__ void largest(float* y, const float* x) {
  const float found = block_max(x[threadIdx.x]);
  y[threadIdx.x] = found;
}

TEST(SimtKernels, BlockMaximumReachesEveryThread) {
  std::vector<float> x(160, -3.0f), y(160);
  x[97] = -1.0f;
  launch(largest, Grid{1, 160}, nullptr, y.data(), x.data());
  EXPECT_EQ(y, std::vector<float>(160, -1.0f));
}

// Inclusive scan of one block by doubling steps in shared memory.
__global__ void scan(int* y, const int* x) {
  ORTHANT_SHARED(int, step, [2][256]);
  const int i = static_cast<int>(threadIdx.x);
  int from = 0;
  step[0][i] = x[i];
  __syncthreads();
  for (int distance = 1; distance < static_cast<int>(blockDim.x); distance *= 2) {
    step[1 - from][i] = step[from][i] + (i >= distance ? step[from][i - distance] : 0);
    from = 1 - from;
    __syncthreads();
  }
  y[i] = step[from][i];
}

TEST(SimtKernels, ScansABlock) {
  std::vector<int> x(256), y(256), expected(256);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<int>(i * 37 % 101) - 50;
  }
  std::partial_sum(x.begin(), x.end(), expected.begin());
  launch(scan, Grid{1, 256}, nullptr, y.data(), x.data());
  EXPECT_EQ(y, expected);
}

// Transposes tiles of [n, n] through dynamic shared memory.
__global__ void transpose(float* y, const float* x, std::int64_t n) {
  auto* tile = dynamic_shared<float>();  // [32, 33]
  const std::int64_t row = blockIdx.y * 32, column = blockIdx.x * 32;
  for (int r = warp(); r < 32; r += static_cast<int>(blockDim.x) / 32) {
    tile[r * 33 + lane()] = x[(row + r) * n + column + lane()];
  }
  __syncthreads();
  for (int r = warp(); r < 32; r += static_cast<int>(blockDim.x) / 32) {
    y[(column + r) * n + row + lane()] = tile[lane() * 33 + r];
  }
}

TEST(SimtKernels, TransposesThroughDynamicSharedMemory) {
  constexpr std::int64_t n = 96;
  const std::vector<float> x = numbers(n * n);
  std::vector<float> y(n * n);
  launch(transpose, Grid{dim3(3, 3), 128, 32 * 33 * sizeof(float)}, nullptr, y.data(), x.data(), n);
  for (std::size_t i = 0; i < n * n; ++i) {
    ASSERT_EQ(y[i % n * n + i / n], x[i]);
  }
}

// Threads beyond n leave at once; the others meet at barriers.
__global__ void early_exit(int* y, int n) {
  ORTHANT_SHARED(int, sum, [1]);
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) {
    return;
  }
  if (i == 0) {
    sum[0] = 0;
  }
  __syncthreads();
  atomicAdd(sum, i);
  __syncthreads();
  y[i] = sum[0];
}

TEST(SimtKernels, ThreadsThatHaveReturnedAreNotWaitedFor) {
  for (const int n : {1, 5, 33, 64}) {
    std::vector<int> y(n);
    launch(early_exit, Grid{1, 64}, nullptr, y.data(), n);
    EXPECT_EQ(y, std::vector<int>(y.size(), n * (n - 1) / 2));
  }
}

// Every collective with its meaning from the CUDA C++ Programming Guide; out [9, 32].
__global__ void collectives(int* out) {
  const int i = lane();
  int* row = out + i;
  const auto put = [&row](int value) {
    *row = value;
    row += 32;
  };
  put(__shfl_sync(all_lanes, 100 + i, 5));
  put(__shfl_sync(all_lanes, 100 + i, 3, 8));
  put(__shfl_up_sync(all_lanes, 100 + i, 2, 16));
  put(__shfl_down_sync(all_lanes, 100 + i, 2, 16));
  put(__shfl_xor_sync(all_lanes, 100 + i, 7));
  put(static_cast<int>(__ballot_sync(all_lanes, i % 3 == 0)));
  put(__any_sync(all_lanes, i == 31) + 10 * __any_sync(all_lanes, 0));
  put(__all_sync(all_lanes, 1) + 10 * __all_sync(all_lanes, i != 17));
  put(static_cast<int>(__match_any_sync(all_lanes, i % 4)));
  put(static_cast<int>(__reduce_max_sync(all_lanes, 0x80000000u + static_cast<unsigned>(i * 7 % 32))));
}

TEST(SimtKernels, WarpCollectives) {
  std::vector<int> out(10 * 32);
  launch(collectives, Grid{1, 32}, nullptr, out.data());
  unsigned thirds = 0;
  for (unsigned i = 0; i < 32; i += 3) {
    thirds |= 1u << i;
  }
  for (int i = 0; i < 32; ++i) {
    const int expected[10] = {105,
                              100 + i / 8 * 8 + 3,
                              100 + (i % 16 < 2 ? i : i - 2),
                              100 + (i % 16 >= 14 ? i : i + 2),
                              100 + (i ^ 7),
                              static_cast<int>(thirds),
                              1,
                              1,
                              static_cast<int>(0x11111111u << (i % 4)),
                              static_cast<int>(0x8000001Fu)};
    for (int k = 0; k < 10; ++k) {
      EXPECT_EQ(out[k * 32 + i], expected[k]) << "collective " << k << ", lane " << i;
    }
  }
}

// Halves of a warp on different ways, together again at the end.
__global__ void divided(int* out) {
  int value = lane();
  if (lane() < 16) {
    value = __shfl_xor_sync(0x0000FFFFu, value, 1);
  } else {
    value = __shfl_xor_sync(0xFFFF0000u, value, 2);
    value = __shfl_xor_sync(0xFFFF0000u, value, 2);
  }
  __syncwarp();
  out[threadIdx.x] = __shfl_xor_sync(all_lanes, value, 16);
}

TEST(SimtKernels, PartsOfAWarpMeetApart) {
  std::vector<int> out(64);
  launch(divided, Grid{1, 64}, nullptr, out.data());
  for (int i = 0; i < 64; ++i) {
    const int from = (i % 32) ^ 16;
    EXPECT_EQ(out[i], from < 16 ? from ^ 1 : from) << i;
  }
}

__global__ void votes(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(i % 5 == 0), any = __syncthreads_or(i == 40), all = __syncthreads_and(i != 40);
  out[i] = count * 100 + any * 10 + all;
}

TEST(SimtKernels, BarriersThatCount) {
  std::vector<int> out(64);
  launch(votes, Grid{1, 64}, nullptr, out.data());
  EXPECT_EQ(out, std::vector<int>(64, 1310));
}

__global__ void atomics(int* out, unsigned long long* wide) {
  const int i = static_cast<int>(threadIdx.x);
  atomicAdd(out, i);
  atomicMax(out + 1, i);
  atomicMin(out + 2, -i);
  atomicOr(out + 3, 1 << (i % 8));
  for (int old = out[4];;) {
    const int seen = atomicCAS(out + 4, old, old + 2);
    if (seen == old) {
      break;
    }
    old = seen;
  }
  atomicAdd(wide, 1ull << 33);
}

TEST(SimtKernels, Atomics) {
  std::vector<int> out(5);
  unsigned long long wide = 0;
  launch(atomics, Grid{2, 64}, nullptr, out.data(), &wide);
  EXPECT_EQ(out, (std::vector<int>{4032, 63, -63, 255, 256}));
  EXPECT_EQ(wide, 1ull << 40);
}

// bf16 to fp32 and back, 8 elements a thread.
__global__ void negate(bf16* y, const bf16* x) {
  float of[vector_elements<bf16>];
  const std::int64_t at = std::int64_t{threadIdx.x} * vector_elements<bf16>;
  load_vector(of, x + at);
  for (float& value : of) {
    value = -value * 1.00390625f;  // 1 + 2^-8: halfway between two neighbours, so ties to even decide
  }
  store_vector(y + at, of);
}

TEST(SimtKernels, Bf16RoundsToNearestEven) {
  void *x = nullptr, *y = nullptr;
  ASSERT_EQ(cudaMalloc(&x, 512), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, 512), cudaSuccess);
  auto* in = static_cast<bf16*>(x);
  for (int i = 0; i < 256; ++i) {
    in[i] = i % 2 == 0 ? 1.0f : 1.0078125f;  // mantissa even, odd
  }
  EXPECT_TRUE(vectorizable(in, 8));
  EXPECT_FALSE(vectorizable(in + 1, 8));
  launch(negate, Grid{1, 32}, nullptr, static_cast<bf16*>(y), static_cast<const bf16*>(x));
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(to_float(static_cast<bf16*>(y)[i]), i % 2 == 0 ? -1.0f : -1.015625f);
  }
  cudaFree(x);
  cudaFree(y);
}

TEST(SimtKernels, SeveralOsThreadsLaunchAtOnce) {
  std::vector<std::vector<float>> results(4);
  const std::vector<float> x = numbers(64 * 200);
  std::vector<std::thread> ranks;
  for (auto& result : results) {
    ranks.emplace_back([&result, &x] {
      result.resize(64);
      for (int i = 0; i < 5; ++i) {
        launch(row_sums, Grid{64, 64}, nullptr, result.data(), x.data(), 200);
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (const auto& result : results) {
    EXPECT_EQ(result, results[0]);
  }
}

}  // namespace
}  // namespace orthant::cuda::kernels_test
