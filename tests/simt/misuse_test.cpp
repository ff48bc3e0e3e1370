// What the shim must notice: each kernel here breaks one rule of CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/device/cuda/device_math.h"
#include "tests/simt/device_library.h"
#include "tests/support/error_of.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace orthant::cuda::misuse_test {
namespace {

using ::orthant::test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The error of a launch of 64 threads.
template <class... P, class... A>
std::string error_of_launch(void (*kernel)(P...), A... args) {
  return error_of([&] { launch(kernel, Grid{3, 64}, nullptr, args...); });
}

__global__ void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(SimtMisuse, ThreadsMeetAtDifferentBarriers) {
  const std::string error = error_of_launch(two_barriers);
  EXPECT_THAT(error, AllOf(HasSubstr("kernel launched at"), HasSubstr("misuse_test.cpp:"), HasSubstr("block ("),
                           HasSubstr("thread "), HasSubstr("must come to the same barrier"), HasSubstr("of seed ")));
}

__global__ void barrier_and_shuffle(int* out) {
  if (threadIdx.x == 40) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_sync(all_lanes, 1, 0);
    __syncthreads();
  }
}

TEST(SimtMisuse, OneThreadWaitsAtABarrierTheRestInAShuffle) {
  std::vector<int> out(64);
  // Warp 0 comes to another barrier than thread 40, or warp 1 waits for it for ever: whichever is seen first.
  EXPECT_THAT(error_of_launch(barrier_and_shuffle, out.data()), HasSubstr("__syncthreads"));
}

__global__ void half_a_warp(int* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __shfl_xor_sync(all_lanes, 1, 1);
  }
  __syncthreads();
}

TEST(SimtMisuse, NotAllLanesOfTheMaskArrive) {
  std::vector<int> out(64);
  EXPECT_THAT(error_of_launch(half_a_warp, out.data()),
              AllOf(HasSubstr("can go on"), HasSubstr("lanes 0x0000ffff of warp"),
                    HasSubstr("wait in __shfl_xor_sync with mask 0xffffffff"), HasSubstr("__syncthreads")));
}

__global__ void masks_differ(int* out) {
  out[threadIdx.x] = __shfl_xor_sync(threadIdx.x % 32 < 16 ? all_lanes : 0xFFFFFF00u, 1, 0);
}

TEST(SimtMisuse, LanesGiveDifferentMasks) {
  std::vector<int> out(64);
  EXPECT_THAT(error_of_launch(masks_differ, out.data()),
              AllOf(HasSubstr("0xffffffff"), HasSubstr("0xffffff00"), HasSubstr("must come to the same call")));
}

__global__ void calls_differ(int* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __any_sync(all_lanes, 1);
  } else {
    __syncwarp();
  }
}

TEST(SimtMisuse, LanesMakeDifferentCalls) {
  std::vector<int> out(64);
  EXPECT_THAT(error_of_launch(calls_differ, out.data()),
              AllOf(HasSubstr("__any_sync"), HasSubstr("__syncwarp"), HasSubstr("must come to the same call")));
}

__global__ void not_in_its_mask() {
  __syncwarp(0x7FFFFFFFu);
}

TEST(SimtMisuse, ALaneIsNotInItsMask) {
  EXPECT_THAT(error_of_launch(not_in_its_mask), HasSubstr("lane 31 is not in its own mask 0x7fffffff"));
}

__global__ void reads_outside_of_the_mask(int* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __shfl_down_sync(0x0000FFFFu, 1, 1);
  }
}

TEST(SimtMisuse, AShuffleReadsALaneOutsideOfTheMask) {
  std::vector<int> out(64);
  EXPECT_THAT(error_of_launch(reads_outside_of_the_mask, out.data()),
              AllOf(HasSubstr("__shfl_down_sync"), HasSubstr("reads lane 16, which is not in the mask 0x0000ffff")));
}

__global__ void reads_who_has_returned(int* out) {
  if (threadIdx.x == 63) {
    return;
  }
  out[threadIdx.x] = __shfl_sync(all_lanes, 1, 31);
}

TEST(SimtMisuse, AShuffleReadsALaneThatHasReturned) {
  std::vector<int> out(64);
  EXPECT_THAT(error_of_launch(reads_who_has_returned, out.data()), HasSubstr("reads lane 31, which has returned"));
}

__global__ void bad_width(int* out) {
  out[threadIdx.x] = __shfl_sync(all_lanes, 1, 0, 12);
}

TEST(SimtMisuse, AShuffleHasABadWidth) {
  std::vector<int> out(64);
  EXPECT_THAT(error_of_launch(bad_width, out.data()), HasSubstr("the width of a shuffle must be"));
}

__global__ void much_shared(int* out) {
  ORTHANT_SHARED(int, first, [6000]);
  ORTHANT_SHARED(int, second, [6400]);
  first[threadIdx.x] = second[threadIdx.x] = *out;
}

__global__ void nothing() {}

TEST(SimtMisuse, LimitsOfABlock) {
  int zero = 0;
  EXPECT_THAT(error_of_launch(much_shared, &zero), HasSubstr("49600 bytes of static"));
  const auto error = [](Grid grid) { return error_of([&] { launch(nothing, grid, nullptr); }); };
  const auto most_on = [&](const char* architecture, std::size_t kilobytes) {
    const test::WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", architecture);
    KernelLimits limits(kilobytes * 1024);
    EXPECT_EQ(error(Grid{1, 1024, {kilobytes * 1024, &limits}}), "no error");
    EXPECT_THAT(
        error(Grid{1, 32, kilobytes * 1024 + 1}),
        HasSubstr(fmt::format("at most {} bytes of shared memory, got {}", kilobytes * 1024, kilobytes * 1024 + 1)));
  };
  most_on("80", 163);
  most_on("86", 99);
  most_on("90", 227);
  most_on("120", 99);
  const test::WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", "85");
  EXPECT_THAT(error(Grid{1, 32}), HasSubstr("must be 80, 86, 89, 90, 100 or 120, got \"85\""));
}

__global__ void is_allowed_nothing() {}

TEST(SimtMisuse, MoreSharedMemoryIsToBeAskedFor) {
  const auto error = [](const SharedBytes& shared) {
    return error_of([&] { launch(is_allowed_nothing, Grid{1, 32, shared}, nullptr); });
  };
  EXPECT_EQ(error({48 * 1024}), "no error");
  EXPECT_THAT(error({48 * 1024 + 1}), HasSubstr("allowed 49152 bytes of dynamic shared memory, got 49153"));
}

__global__ void is_allowed_more() {}

TEST(KernelLimits, AskEachKernelOnce) {
  KernelLimits limits(163 * 1024);
  const auto questions = [&](std::size_t bytes) {
    const std::int64_t before = simt::questions_of_kernels();
    launch(is_allowed_more, Grid{1, 32, {bytes, &limits}}, nullptr);
    return simt::questions_of_kernels() - before;
  };
  EXPECT_EQ(questions(1000), 1);
  EXPECT_EQ(questions(48 * 1024), 0);
  EXPECT_EQ(questions(100 * 1024), 1);  // and is allowed all there is
  EXPECT_EQ(questions(163 * 1024), 0);
  KernelLimits of_another_rank(163 * 1024);
  launch(is_allowed_more, Grid{1, 32, {90 * 1024, &of_another_rank}}, nullptr);
  EXPECT_EQ(questions(163 * 1024), 0);
}

TEST(SimtMisuse, SizesOfALaunch) {
  const auto error = [](Grid grid) { return error_of([&] { launch(nothing, grid, nullptr); }); };
  EXPECT_THAT(error(Grid{1, 1056}), HasSubstr("got 1056"));
  EXPECT_THAT(error(Grid{1, 48}), HasSubstr("got 48"));
  EXPECT_THAT(error(Grid{1, 0}), HasSubstr("got 0"));
  EXPECT_THAT(error(Grid{dim3(1, 65536), 32}), HasSubstr("got 1 x 65536 x 1"));
  EXPECT_EQ(error(Grid{1, 1024}), "no error");
}

__global__ void launches_another() {
  launch(nothing, Grid{1, 32}, nullptr);
}

TEST(SimtMisuse, WhereKernelsAndTheHostMayNotGo) {
  EXPECT_THAT(error_of_launch(launches_another), HasSubstr("a kernel launches a kernel"));
  EXPECT_THAT(error_of([] { __syncthreads(); }), HasSubstr("__syncthreads was called outside of a kernel"));
}

struct Counted {
  explicit Counted(int* count) : count_(count) { ++*count_; }
  ~Counted() { --*count_; }
  int* count_;
};

__global__ void fails_in_one_thread(int* alive, bool trap) {
  const Counted counted(alive);
  __syncthreads();
  if (threadIdx.x == 33 && trap) {
    __trap();
  }
  if (threadIdx.x == 33) {
    throw std::out_of_range("of the kernel");
  }
  __syncthreads();
}

__global__ void sum_of_ones(int* out) {
  const int sum = block_sum(1);
  out[threadIdx.x] = sum;
}

TEST(SimtMisuse, AFailureUnwindsAllThreadsAndTheNextLaunchWorks) {
  for (int round = 0; round < 3; ++round) {
    int alive = 0;
    EXPECT_THAT(error_of_launch(fails_in_one_thread, &alive, true), AllOf(HasSubstr("thread 33"), HasSubstr("__trap")));
    EXPECT_EQ(alive, 0);
    EXPECT_THROW(launch(fails_in_one_thread, Grid{1, 64}, nullptr, &alive, false), std::out_of_range);
    EXPECT_EQ(alive, 0);
    std::vector<int> out(64);
    launch(sum_of_ones, Grid{1, 64}, nullptr, out.data());
    EXPECT_EQ(out, std::vector<int>(64, 64));
  }
}

// Reverses a block through shared memory. Right only with the barrier.
__global__ void reverse(int* y, const int* x, bool with_barrier) {
  ORTHANT_SHARED(int, kept, [64]);
  kept[threadIdx.x] = x[threadIdx.x];
  if (with_barrier) {
    __syncthreads();
  }
  y[threadIdx.x] = kept[63 - threadIdx.x];
}

// The sum of a warp by halves in shared memory, as if the lanes of a warp kept step: since Volta they need not.
__global__ void sum_in_step(int* y, bool with_barrier) {
  ORTHANT_SHARED(int, part, [32]);
  const auto i = threadIdx.x;
  part[i] = 1;
  for (unsigned half = 16; half > 0; half /= 2) {
    if (with_barrier) {
      __syncwarp();
    }
    if (i < half) {
      part[i] += part[i + half];
    }
  }
  if (i == 0) {
    *y = part[0];
  }
}

TEST(SimtMisuse, AMissingBarrierGivesWrongResults) {
  std::vector<int> x(64), y(64), expected(64);
  for (int i = 0; i < 64; ++i) {
    x[i] = i;
    expected[i] = 63 - i;
  }
  int wrong = 0, wrong_sums = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    simt::reseed(seed);
    launch(reverse, Grid{1, 64}, nullptr, y.data(), x.data(), true);
    EXPECT_EQ(y, expected);
    launch(reverse, Grid{1, 64}, nullptr, y.data(), x.data(), false);
    wrong += y != expected;
    int sum = 0;
    launch(sum_in_step, Grid{1, 32}, nullptr, &sum, true);
    EXPECT_EQ(sum, 32);
    launch(sum_in_step, Grid{1, 32}, nullptr, &sum, false);
    wrong_sums += sum != 32;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_GT(wrong_sums, 0);
}

__global__ void append(int* list, int* size) {
  list[atomicAdd(size, 1)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

// A list in the order of arrival differs from launch to launch: what the test list's second run sees.
TEST(SimtMisuse, TheOrderOfBlocksAndThreadsChangesWithEachLaunchAndRepeatsWithTheSeed) {
  const auto arrivals = [](unsigned blocks, int threads) {
    std::vector<int> list(128, -1);
    int size = 0;
    launch(append, Grid{blocks, threads}, nullptr, list.data(), &size);
    return list;
  };
  for (const auto& [blocks, threads] : {std::pair{1u, 128}, std::pair{4u, 32}}) {
    simt::reseed(5);
    const std::vector<int> first = arrivals(blocks, threads), second = arrivals(blocks, threads);
    EXPECT_NE(first, second);
    simt::reseed(5);
    EXPECT_EQ(arrivals(blocks, threads), first);
    EXPECT_EQ(arrivals(blocks, threads), second);
    simt::reseed(6);
    EXPECT_NE(arrivals(blocks, threads), first);
    std::vector<int> sorted = first, all(128);
    std::iota(all.begin(), all.end(), 0);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, all);
  }
  std::vector<int> first_of_block;  // the order of blocks alone
  simt::reseed(5);
  for (int run = 0; run < 8; ++run) {
    first_of_block.push_back(arrivals(4, 32)[0] / 32);
  }
  EXPECT_NE(first_of_block, std::vector<int>(8, first_of_block[0]));
}

// out [blocks]: what static and dynamic shared memory hold when the block begins; then it writes both.
__global__ void what_is_there(float* out) {
  ORTHANT_SHARED(float, fixed, [1]);
  auto* dynamic = dynamic_shared<float>();
  if (threadIdx.x == 0) {
    out[blockIdx.x] = isnan(fixed[0]) && isnan(dynamic[0]) ? 1.0f : 0.0f;
    fixed[0] = dynamic[0] = 1;
  }
}

TEST(SimtMisuse, MemoryThatNobodyWroteIsNan) {
  std::vector<float> out(4);
  launch(what_is_there, Grid{4, 32, sizeof(float)}, nullptr, out.data());
  EXPECT_EQ(out, std::vector<float>(4, 1.0f));
  float* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, 3 * sizeof(float), nullptr), cudaSuccess);
  EXPECT_TRUE(std::isnan(memory[0]) && std::isnan(memory[2]));
  cudaFreeAsync(memory, nullptr);
}

TEST(SimtMisuse, CheckNamesTheOperationAndTheError) {
  void* memory = nullptr;
  EXPECT_THAT(
      error_of([&] { check(cudaMalloc(&memory, std::numeric_limits<std::size_t>::max() / 2), "memory for x"); }),
      AllOf(HasSubstr("memory for x"), HasSubstr("cudaErrorMemoryAllocation"), HasSubstr("out of memory")));
  EXPECT_EQ(memory, nullptr);
}

#if defined(__SANITIZE_ADDRESS__)
__global__ void ends_of_shared_memory(int* out) {
  ORTHANT_SHARED(char, fixed, [24]);
  auto* dynamic = dynamic_shared<char>();
  *out = __asan_address_is_poisoned(fixed + 23) + 10 * __asan_address_is_poisoned(fixed + 24) +
         100 * __asan_address_is_poisoned(dynamic + 39) + 1000 * __asan_address_is_poisoned(dynamic + 40);
}

TEST(SimtMisuse, AddressSanitizerSeesTheFirstByteBehind) {
  int out = 0;
  launch(ends_of_shared_memory, Grid{1, 32, 40}, nullptr, &out);
  EXPECT_EQ(out, 1010);
  char* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 40), cudaSuccess);
  EXPECT_TRUE(__asan_address_is_poisoned(memory + 40) == 1 && __asan_address_is_poisoned(memory + 39) == 0);
  cudaFree(memory);
}
#endif

}  // namespace
}  // namespace orthant::cuda::misuse_test
