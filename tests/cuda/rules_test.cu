// The rules that host and device share (random numbers, the choice of experts) give the same on both.
// Built by the preset `cuda`; needs a GPU to run and says so where there is none.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <orthant/random.h>
#include <cstdint>
#include <vector>

#include "router/rules/gate.h"

namespace orthant {
namespace {

__host__ __device__ constexpr RandomKey test_key() {
  return {42, Purpose::jitter, 3, 7};
}
constexpr int tokens = 257, experts = 16, top_k = 3;

__global__ void random_numbers(float* uniform_out, float* normal_out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    uniform_out[i] = uniform(test_key(), static_cast<std::uint64_t>(i));
    normal_out[i] = normal(test_key(), static_cast<std::uint64_t>(i));
  }
}

// One thread a token: expert [T, K] from logits [T, E].
__global__ void choose(std::int32_t* expert, const float* logits, int n) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t < n) {
    select_top(expert + t * top_k, logits + t * experts, experts, top_k);
  }
}

class CudaRules : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no GPU: the CUDA code was compiled but cannot run here";
    }
  }
  template <class T>
  T* allocate(std::size_t n) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocManaged(&memory, n * sizeof(T)), cudaSuccess);
    return static_cast<T*>(memory);
  }
};

TEST_F(CudaRules, RandomNumbersEqualTheHosts) {
  auto* u = allocate<float>(tokens);
  auto* g = allocate<float>(tokens);
  random_numbers<<<(tokens + 63) / 64, 64>>>(u, g, tokens);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < tokens; ++i) {
    EXPECT_EQ(u[i], uniform(test_key(), static_cast<std::uint64_t>(i)));
    EXPECT_NEAR(g[i], normal(test_key(), static_cast<std::uint64_t>(i)), 1e-6f);
  }
  cudaFree(u);
  cudaFree(g);
}

TEST_F(CudaRules, ExpertsEqualTheHostsTiesIncluded) {
  auto* logits = allocate<float>(tokens * experts);
  auto* chosen = allocate<std::int32_t>(tokens * top_k);
  for (int i = 0; i < tokens * experts; ++i) {
    logits[i] = static_cast<float>(below(test_key(), static_cast<std::uint64_t>(i), 5));  // few values: many ties
  }
  choose<<<(tokens + 63) / 64, 64>>>(chosen, logits, tokens);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<std::int32_t> expected(top_k);
  for (int t = 0; t < tokens; ++t) {
    select_top(expected.data(), logits + t * experts, experts, top_k);
    for (int k = 0; k < top_k; ++k) {
      EXPECT_EQ(chosen[t * top_k + k], expected[k]);
    }
  }
  cudaFree(logits);
  cudaFree(chosen);
}

}  // namespace
}  // namespace orthant
