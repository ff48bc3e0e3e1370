// Boxes of tensors, clusters and matrices from registers under the shim: values against loops on the host, by the PTX
// ISA's drawings; and what must be noticed when a protocol forgets something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "experts/cuda/hopper/cluster.h"
#include "experts/cuda/hopper/tensor_map.h"
#include "tests/simt/device_library.h"

namespace orthant::cuda::bulk_copies_test {
namespace {

using test::WithVariable;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::size_t shared_bytes = 32 * 1024;

// A tensor [depth, rows, columns] whose elements differ.
struct Source {
  static constexpr int columns = 40, rows = 10, depth = 3;
  std::vector<bf16> values;

  Source() {
    for (int i = 0; i < columns * rows * depth; ++i) {
      values.push_back(bf16(static_cast<float>(i % 251) - 100.0f));
    }
  }
  float at(int x, int y, int z) const {
    const bool there = x >= 0 && x < columns && y >= 0 && y < rows && z >= 0 && z < depth;
    return there ? float(values[static_cast<std::size_t>((z * rows + y) * columns + x)]) : 0.0f;
  }
  CUtensorMap map(const std::array<int, 3>& box) const {
    return tensor_map(values.data(), {columns, rows, depth}, box);
  }
};

Grid cluster_of_two(int threads, KernelLimits& limits) {
  Grid grid{2, threads, {shared_bytes, &limits}};
  grid.cluster = 2;
  return grid;
}

// Where the ISA's swizzle puts a byte of a box whose rows have so many bytes: 16-byte pieces are exchanged by the
// number of their 128 bytes, modulo 8, 4 or 2.
__host__ __device__ int swizzled(int byte, int row_bytes) {
  return byte ^ (byte / 128 % (row_bytes / 16)) * 16;
}

// out [2 blocks][box]: each block gets the box in two halves of z, one from each block.
__global__ void loads_together(float* out, const CUtensorMap map, int x, int y, int z, int row_elements, int rows) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const std::uint32_t begin = shared_address(memory), to = (begin + 1023) / 1024 * 1024, barrier = to + 16 * 1024;
  const int rank = static_cast<int>(cluster_rank()), half = row_elements * rows * 2;
  if (threadIdx.x == 0) {
    make_barrier(barrier, 1);
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    load_box(to + static_cast<std::uint32_t>(rank * half), barrier, map, x, y, z + rank, true);
    arrive_expecting(barrier, static_cast<unsigned>(2 * half));
  }
  wait_for_phase(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
    const unsigned char* const at = memory + (to - begin) + swizzled(2 * i, row_elements * 2);
    out[rank * half + i] = to_float(*reinterpret_cast<const bf16*>(at));
  }
  cluster_sync();
}

TEST(SimtBoxes, ComeToBothBlocksOfACluster) {
  const WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", "90");
  const Source source;
  KernelLimits limits(simt::shared_limit());
  for (const int row_elements : {64, 32, 16}) {
    constexpr int rows = 16;  // half a box is a whole number of the swizzle's patterns
    const CUtensorMap map = source.map({row_elements, rows, 1});
    for (const auto& [x, y, z] : {std::array{0, 0, 0}, std::array{8, 3, 1}, std::array{-8, -2, -1},
                                  std::array{32, 9, 2}, std::array{64, 0, 0}}) {
      std::vector<float> out(static_cast<std::size_t>(4 * row_elements * rows), -1.0f);
      launch(loads_together, cluster_of_two(64, limits), nullptr, out.data(), map, x, y, z, row_elements, rows);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const int at = static_cast<int>(i) % (2 * row_elements * rows), column = at % row_elements;
        const int row = at / row_elements % rows, layer = at / row_elements / rows;
        ASSERT_EQ(out[i], source.at(x + column, y + row, z + layer)) << row_elements << ": " << i << " from " << x;
      }
    }
  }
}

// A box of 16 x 32 from registers by one warp, as stmatrix lays it out.
__global__ void stores(const CUtensorMap map, int x, int y, int z) {
  const std::uint32_t begin = shared_address(dynamic_shared<unsigned char>()), box = (begin + 1023) / 1024 * 1024;
  for (int half = 0; half < 2; ++half) {
    std::uint32_t r[4];
    for (int m = 0; m < 4; ++m) {  // row, and column in units of a hundredth
      const float row = static_cast<float>(lane() / 4 + m % 2 * 8);
      const int column = half * 16 + m / 2 * 8 + lane() % 4 * 2;
      const bf16 pair[2] = {bf16(row * 8 + static_cast<float>(column / 8)), bf16(static_cast<float>(column % 8 + 1))};
      std::memcpy(&r[m], pair, sizeof pair);
    }
    const int row = lane() % 16, piece = half * 2 + lane() / 16;
    store_matrices(box + static_cast<std::uint32_t>(swizzled(row * 64 + piece * 16, 64)), r);
  }
  fence_async_proxy();
  __syncwarp();
  if (lane() == 0) {
    store_box(map, box, x, y, z);
    end_stores();
  }
  wait_for_stores<0>();
}

TEST(SimtBoxes, AreStoredWhereThereIsATensor) {
  constexpr int columns = 40, rows = 20, depth = 2;
  for (const auto& [x, y, z] :
       {std::array{0, 0, 0}, std::array{16, 9, 1}, std::array{-16, -3, 1}, std::array{40, 0, 0}}) {
    std::vector<bf16> c(columns * rows * depth, bf16(-1.0f));
    launch(stores, Grid{1, 32, 4096}, nullptr, tensor_map(c.data(), {columns, rows, depth}, {32, 16, 1}), x, y, z);
    for (int i = 0; i < columns * rows * depth; ++i) {
      const int column = i % columns - x, row = i / columns % rows - y;
      const bool there = column >= 0 && column < 32 && row >= 0 && row < 16 && i / columns / rows == z;
      const float want = !there            ? -1.0f
                         : column % 2 == 0 ? static_cast<float>(row * 8 + column / 8)
                                           : static_cast<float>(column % 8);
      ASSERT_EQ(float(c[static_cast<std::size_t>(i)]), want) << i << " of " << x << ", " << y << ", " << z;
    }
  }
}

TEST(SimtBoxes, MapsThatTheDriverRefuses) {
  alignas(64) CUtensorMap map;
  alignas(16) static std::byte memory[64];
  const auto made = [&](void* address, cuuint64_t width, cuuint64_t stride, cuuint32_t box,
                        CUtensorMapSwizzle swizzle) {
    const cuuint64_t sizes[] = {width, 4, 4}, strides[] = {stride, 4 * stride};
    const cuuint32_t boxes[] = {box, 2, 1}, ones[] = {1, 1, 1};
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, address, sizes, strides, boxes, ones,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  EXPECT_EQ(made(memory, 8, 16, 64, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS);
  EXPECT_EQ(made(memory + 8, 8, 16, 64, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_ERROR_INVALID_VALUE);  // the address
  EXPECT_EQ(made(memory, 8, 24, 64, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_ERROR_INVALID_VALUE);      // the stride
  EXPECT_EQ(made(memory, 0, 16, 64, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_ERROR_INVALID_VALUE);      // no tensor
  EXPECT_EQ(made(memory, 8, 16, 72, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_ERROR_INVALID_VALUE);  // wider than the swizzle
  EXPECT_EQ(made(memory, 8, 16, 64, CU_TENSOR_MAP_SWIZZLE_64B), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(made(memory, 8, 16, 12, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_ERROR_INVALID_VALUE);  // not of 16 bytes
}

// --- what is missing in each, by a cluster of two blocks of one warp
enum class Missing {
  nothing,
  few_bytes,
  many_bytes,
  wait,
  alignment,
  store_fence,
  store_read,
  store_wait,
  first_sync,
  last_sync,
  barrier_of_another
};

__global__ void lacks(float* out, const CUtensorMap map, const CUtensorMap to, Missing missing) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const std::uint32_t begin = shared_address(memory), at = (begin + 1023) / 1024 * 1024;
  const std::uint32_t barrier = at + 4096, told = barrier + 8;
  const unsigned rank = cluster_rank();
  constexpr unsigned bytes = 16 * 64;
  if (lane() == 0) {
    make_barrier(barrier, 1);
    make_barrier(told, 2);
  }
  __syncwarp();
  if (missing != Missing::first_sync) {
    cluster_sync();
  }
  if (lane() == 0) {
    const unsigned wrong = missing == Missing::few_bytes    ? bytes / 2
                           : missing == Missing::many_bytes ? 2 * bytes
                                                            : bytes;
    arrive_expecting(barrier, wrong);
    load_box(at + (missing == Missing::alignment ? 256 : 0), barrier, map, 0, 0, 0, false);
  }
  if (missing != Missing::wait) {
    wait_for_phase(barrier, 0);
  }
  out[rank * 32 + static_cast<unsigned>(lane())] =
      to_float(*reinterpret_cast<const bf16*>(memory + (at - begin) + lane() / 8 * 64 + lane() % 8 * 2));
  const std::uint32_t r[4] = {};
  store_matrices(at + static_cast<std::uint32_t>(2048 + lane() % 16 * 64), r);
  store_matrices(at + static_cast<std::uint32_t>(2048 + lane() % 16 * 64 + 16), r);
  if (missing != Missing::store_fence) {
    fence_async_proxy();
  }
  __syncwarp();
  if (lane() == 0) {
    store_box(to, at + 2048, 0, static_cast<int>(rank) * 16, 0);
    end_stores();
  }
  __syncwarp();
  if (missing == Missing::store_read) {
    store_matrices(at + static_cast<std::uint32_t>(2048 + lane() % 16 * 64), r);
  }
  if (missing != Missing::store_wait) {
    wait_for_stores<0>();
  }
  if (missing == Missing::last_sync && rank == 1) {
    return;
  }
  for (int i = 0; i < (missing == Missing::last_sync ? 300 : 1); ++i) {
    __syncwarp();
  }
  if (lane() == 0) {
    for (unsigned other = 0; other < 2; ++other) {
      arrive_in_cluster(cluster_address(missing == Missing::barrier_of_another ? told + 8 : told, other));
    }
  }
  if (missing != Missing::last_sync) {
    wait_for_phase(told, 0);
    cluster_sync();
  }
}

// The error, or "NaN" where what came was not there, or "right".
std::string outcome(Missing missing) {
  const WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", "90");
  const std::vector<bf16> ones(32 * 16, bf16(1.0f));
  std::vector<bf16> to(32 * 32);
  std::vector<float> out(64, -1.0f);
  KernelLimits limits(simt::shared_limit());
  try {
    launch(lacks, cluster_of_two(32, limits), nullptr, out.data(), tensor_map(ones.data(), {32, 16, 1}, {32, 16, 1}),
           tensor_map(to.data(), {32, 32, 1}, {32, 16, 1}), missing);
  } catch (const Error& error) {
    return error.what();
  }
  for (const float x : out) {
    if (x != 1.0f) {
      return std::isnan(x) ? "NaN" : "wrong";
    }
  }
  return "right";
}

TEST(SimtBoxes, WhatIsMissingShows) {
  EXPECT_EQ(outcome(Missing::nothing), "right");
  EXPECT_THAT(outcome(Missing::few_bytes), HasSubstr("no thread can go on"));
  EXPECT_THAT(outcome(Missing::many_bytes), HasSubstr("no thread can go on"));
  EXPECT_THAT(outcome(Missing::wait), AnyOf("NaN", HasSubstr("going on when their blocks ended")));
  EXPECT_THAT(outcome(Missing::alignment), HasSubstr("its pattern begins at multiples of 512"));
  EXPECT_THAT(outcome(Missing::store_fence), HasSubstr("before its fence.proxy.async"));
  EXPECT_THAT(outcome(Missing::store_read), HasSubstr("that a bulk store has not read yet"));
  EXPECT_THAT(outcome(Missing::store_wait), HasSubstr("ended before cp.async.bulk.wait_group"));
  EXPECT_THAT(outcome(Missing::first_sync), HasSubstr("used before a cluster barrier"));
  EXPECT_THAT(outcome(Missing::last_sync), HasSubstr("another block is used that has ended"));
  EXPECT_THAT(outcome(Missing::barrier_of_another), HasSubstr("there is no barrier at shared address"));
}

// Bytes that come and that nobody expects, while nobody waits for them.
__global__ void expects_nothing(const CUtensorMap map) {
  const std::uint32_t at = (shared_address(dynamic_shared<unsigned char>()) + 1023) / 1024 * 1024;
  if (lane() == 0) {
    make_barrier(at + 2048, 2);
    load_box(at, at + 2048, map, 0, 0, 0, false);
    for (int i = 0; i < 1000; ++i) {
      __syncwarp(1);
    }
  }
}

TEST(SimtBoxes, BytesThatNobodyExpectsAreAnError) {
  const std::vector<bf16> ones(32 * 16, bf16(1.0f));
  try {
    launch(expects_nothing, Grid{1, 32, 8192}, nullptr, tensor_map(ones.data(), {32, 16, 1}, {32, 16, 1}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("still waits for -1024 bytes at the end"));
  }
}

__global__ void does_nothing() {}

TEST(SimtClusters, AreHoppersAndDivideTheGrid) {
  const auto refusal = [](const char* architecture, unsigned blocks) -> std::string {
    const WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", architecture);
    Grid grid{blocks, 32};
    grid.cluster = 2;
    try {
      launch(does_nothing, grid, nullptr);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal("90", 4), "no error");
  EXPECT_THAT(refusal("90", 3), HasSubstr("got 2 of 3 blocks"));
  EXPECT_THAT(refusal("80", 4), HasSubstr("on sm_80"));
}

}  // namespace
}  // namespace orthant::cuda::bulk_copies_test
