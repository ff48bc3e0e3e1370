// The rules by which the CUDA device chooses a kernel for the experts and places each expert's product: no GPU needed.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experts/cuda/choose_kernels.h"
#include "experts/cuda/kernels_text.h"
#include "experts/cuda/tile_order.h"

namespace orthant::cuda::grouped_rules_test {
namespace {

constexpr int h100 = 132;

GroupedProblem problem(GroupedLayout layout, std::int64_t experts, std::int64_t rows, std::int64_t n, std::int64_t k) {
  alignas(16) static std::array<std::byte, 64> memory;  // addresses only
  GroupedProblem p{.layout = layout,
                   .experts = experts,
                   .rows = rows,
                   .n = n,
                   .a = memory.data(),
                   .b = memory.data() + 16,
                   .c = memory.data() + 32};
  (layout == GroupedLayout::tn ? p.m : p.k) = k;
  return p;
}

// Shares of an H200's peak that each tile reached (bench/results/hopper.md); 0: not measured.
TEST(ChooseTile, IsNearTheBestThatWasMeasured) {
  struct Measured {
    std::int64_t rows, experts, n, k;
    std::map<HopperTile, int> share;
  };
  const auto of = [](int large, int overlapped, int square) {
    return std::map<HopperTile, int>{
        {HopperTile::large, large}, {HopperTile::overlapped, overlapped}, {HopperTile::square, square}};
  };
  const Measured all[] = {
      {262144, 64, 2048, 2048, of(88, 83, 96)}, {262144, 64, 2048, 1024, of(83, 81, 91)},
      {262144, 64, 1024, 2048, of(89, 80, 90)}, {262144, 64, 2048, 2048, of(85, 81, 93)},
      {196608, 128, 512, 1536, of(77, 60, 82)}, {196608, 128, 1536, 256, of(54, 60, 56)},
      {196608, 128, 256, 1536, of(72, 58, 73)}, {196608, 128, 1536, 512, of(65, 76, 68)},
      {32768, 8, 28672, 4096, of(91, 95, 92)},  {32768, 8, 4096, 14336, of(92, 91, 93)},
      {32768, 8, 14336, 4096, of(89, 91, 91)},  {32768, 8, 4096, 28672, of(86, 84, 83)},
      {131072, 32, 4096, 7168, of(92, 86, 92)}, {131072, 32, 7168, 2048, of(91, 90, 95)},
      {131072, 32, 2048, 7168, of(92, 75, 90)}, {131072, 32, 7168, 4096, of(89, 84, 84)},
      {524288, 256, 4096, 256, of(0, 61, 57)},  {524288, 256, 4096, 512, of(0, 81, 79)},
      {262144, 128, 2048, 768, of(0, 76, 84)},
  };
  for (const Measured& x : all) {
    const HopperTile tile = choose_tile(problem(GroupedLayout::nt, x.experts, x.rows, x.n, x.k), h100);
    ASSERT_TRUE(x.share.contains(tile)) << x.rows << " rows, n " << x.n << ", k " << x.k;
    for (const auto& [other, share] : x.share) {
      EXPECT_GE(x.share.at(tile), share - 2) << x.rows << " rows, n " << x.n << ", k " << x.k;
    }
  }
}

// Layers of published models: forward of the gate and up projections, then of the down projection.
TEST(ChooseTile, TakesLargeTilesForLongSumsAndPingPongOnesForOthers) {
  struct Layer {
    std::int64_t rows, experts, d, f;
    HopperTile in, out;
  };
  const Layer layers[] = {
      {262144, 64, 2048, 1024, HopperTile::square, HopperTile::square},      // OLMoE-1B-7B
      {32768, 8, 4096, 14336, HopperTile::overlapped, HopperTile::large},    // Mixtral-8x7B
      {196608, 128, 1536, 256, HopperTile::square, HopperTile::overlapped},  // fine-grained
      {524288, 256, 4096, 256, HopperTile::square, HopperTile::overlapped},
      {131072, 32, 7168, 2048, HopperTile::large, HopperTile::square},       // a slice of DeepSeek-V3
      {262144, 128, 2048, 768, HopperTile::overlapped, HopperTile::square},  // Qwen3-30B-A3B
      {4096, 64, 2048, 1024, HopperTile::small, HopperTile::small},          // the first with few tokens
  };
  for (const Layer& x : layers) {
    const auto in = problem(GroupedLayout::nt, x.experts, x.rows, 2 * x.f, x.d);
    const auto out = problem(GroupedLayout::nt, x.experts, x.rows, x.d, x.f);
    EXPECT_EQ(choose_tile(in, h100), x.in) << x.rows << " rows, " << x.experts << " experts";
    EXPECT_EQ(choose_tile(out, h100), x.out) << x.rows << " rows, " << x.experts << " experts";
  }
}

TEST(ChooseTile, TakesSmallTilesWhereLargeOnesWouldNotGoRound) {
  // 4 experts x 2 row tiles x 4 column tiles = 32 for 132 processors; 4 times the columns are enough.
  EXPECT_EQ(choose_tile(problem(GroupedLayout::nn, 4, 1024, 1024, 4096), h100), HopperTile::small);
  EXPECT_NE(choose_tile(problem(GroupedLayout::nn, 4, 1024, 8192, 4096), h100), HopperTile::small);
  EXPECT_NE(choose_tile(problem(GroupedLayout::nn, 4, 1024, 1024, 4096), 16), HopperTile::small);
}

// A cluster of two large tiles, one below the other, pads 256 rows to 512 half of the time.
TEST(ChooseTile, PadsFewRowsByHalfATile) {
  for (const std::int64_t rows : {200, 256, 512}) {
    EXPECT_EQ(choose_tile(problem(GroupedLayout::nt, 128, 128 * rows, 4096, 4096), h100), HopperTile::square) << rows;
  }
  EXPECT_EQ(choose_tile(problem(GroupedLayout::nt, 128, 128 * 4096, 2048, 4096), h100), HopperTile::large);
  // Two tiles of 128 columns are a cluster; one of 192 or 256 has no neighbour to make one with.
  EXPECT_EQ(choose_tile(problem(GroupedLayout::nn, 128, 128 * 256, 256, 4096), h100), HopperTile::square);
}

// 100 steps of waiting for the store are 5 % of 2,048; a square tile loses as much there.
TEST(ChooseTile, StoresWhileItMultipliesForUpTo2048Steps) {
  for (std::int64_t n = 256; n <= 8192; n += 128) {
    for (const std::int64_t k : {64, 256, 768, 2048}) {
      for (const std::int64_t rows : {192, 256, 1024, 4096, 8192}) {
        const HopperTile tile = choose_tile(problem(GroupedLayout::nt, 64, 64 * rows, n, k), h100);
        EXPECT_NE(tile, HopperTile::large) << rows << " rows, n " << n << ", k " << k;
      }
    }
  }
}

TEST(TileSetting, IsATileOrNothing) {
  EXPECT_EQ(tile_setting(""), std::nullopt);
  EXPECT_EQ(tile_setting("large"), HopperTile::large);
  EXPECT_EQ(tile_setting("overlapped"), HopperTile::overlapped);
  EXPECT_EQ(tile_setting("square"), HopperTile::square);
  EXPECT_EQ(tile_setting("small"), HopperTile::small);
  for (const char* wrong : {"Large", "128x256", " ", "larg"}) {
    try {
      tile_setting(wrong);
      ADD_FAILURE() << wrong << " was taken";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("ORTHANT_CUDA_TILE=") + wrong), std::string::npos)
          << error.what();
    }
  }
}

TEST(ChooseBlackwellTile, TakesPairsUnlessRowsAreFew) {
  constexpr int b200 = 148;
  const auto tile = [](std::int64_t experts, std::int64_t rows, std::int64_t n) {
    return choose_blackwell_tile(problem(GroupedLayout::nt, experts, rows, n, 2048), b200);
  };
  EXPECT_EQ(tile(64, 262144, 2048), BlackwellTile::pair);  // OLMoE-1B-7B
  EXPECT_EQ(tile(256, 524288, 512), BlackwellTile::pair);  // fine-grained
  EXPECT_EQ(tile(64, 64 * 128, 8192), BlackwellTile::single) << "a pair would multiply twice as many rows";
  EXPECT_EQ(tile(64, 64 * 129, 8192), BlackwellTile::pair);
  EXPECT_EQ(tile(4, 2048, 1024), BlackwellTile::single) << "32 pairs for 74";
}

// What lets a multiprocessor have two blocks, whose other one multiplies while this one waits.
TEST(MmaStages, FitTwiceIntoAMultiprocessor) {
  struct Gpu {
    int architecture, kilobytes,
        stages;  // that a multiprocessor has: a block may have one less (CUDA's programming guide)
  };
  for (const Gpu& gpu :
       {Gpu{80, 164, 4}, Gpu{86, 100, 3}, Gpu{89, 100, 3}, Gpu{90, 228, 4}, Gpu{100, 228, 4}, Gpu{120, 100, 3}}) {
    const int stages = mma_stages(static_cast<std::size_t>(gpu.kilobytes - 1) * 1024);
    EXPECT_EQ(stages, gpu.stages) << "sm_" << gpu.architecture;
    EXPECT_LE(2 * (stages * 16 + 1), gpu.kilobytes) << "sm_" << gpu.architecture;
  }
}

TEST(CutlassTakes, WhatTheMemoryUnitCanAddress) {
  for (const GroupedLayout layout : {GroupedLayout::nt, GroupedLayout::nn, GroupedLayout::tn}) {
    const DType out = layout == GroupedLayout::tn ? DType::f32 : DType::bf16;
    const GroupedProblem good = problem(layout, 8, 100, 64, 24);
    EXPECT_TRUE(cutlass_takes(good, DType::bf16, out));
    EXPECT_FALSE(cutlass_takes(good, DType::f32, out));
    EXPECT_FALSE(cutlass_takes(good, DType::bf16, layout == GroupedLayout::tn ? DType::bf16 : DType::f32));
    EXPECT_FALSE(cutlass_takes(problem(layout, 8, 100, 65, 24), DType::bf16, out));
    EXPECT_FALSE(cutlass_takes(problem(layout, 8, 100, 68, 24), DType::bf16, out));
    EXPECT_FALSE(cutlass_takes(problem(layout, 8, 100, 64, 20), DType::bf16, out));
    EXPECT_FALSE(cutlass_takes(problem(layout, 8, 100, 64, 0), DType::bf16, out));
    EXPECT_FALSE(cutlass_takes(problem(layout, 8, 0, 64, 24), DType::bf16, out));
    GroupedProblem added = good, shifted = good;
    added.beta = 1;
    shifted.a = static_cast<const std::byte*>(good.a) + 2;
    EXPECT_EQ(cutlass_takes(added, DType::bf16, out), layout == GroupedLayout::tn);
    EXPECT_FALSE(cutlass_takes(shifted, DType::bf16, out));
  }
}

TEST(ExpertSetting, IsOneOfTwoOrNothing) {
  EXPECT_EQ(expert_setting(""), ExpertSetting::automatic);
  EXPECT_EQ(expert_setting("packed"), ExpertSetting::packed);
  EXPECT_EQ(expert_setting("fused"), ExpertSetting::fused);
  for (const char* wrong : {"Fused", "packed,fused", " ", "1"}) {
    try {
      expert_setting(wrong);
      ADD_FAILURE() << wrong << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("ORTHANT_CUDA_EXPERTS=") + wrong), std::string::npos)
          << error.what();
    }
  }
}

TEST(ChooseKernels, ByGpuLibraryAndSetting) {
  using enum ExpertProducts;
  constexpr auto automatic = ExpertSetting::automatic, packed = ExpertSetting::packed, fused = ExpertSetting::fused;
  struct Row {
    ExpertMeans means;
    ExpertProducts products;
    bool fused;
  };
  const Row table[] = {
      {{80, false, automatic}, mma, true},      {{80, true, automatic}, mma, true},
      {{80, true, packed}, mma, false},         {{80, true, fused}, mma, true},
      {{90, true, automatic}, cutlass, false},  {{90, true, packed}, cutlass, false},
      {{90, true, fused}, mma, true},           {{90, false, automatic}, mma, true},
      {{90, false, packed}, mma, false},        {{90, false, fused}, mma, true},
      {{100, true, automatic}, cutlass, false}, {{103, true, packed}, cutlass, false},
      {{100, true, fused}, mma, true},          {{100, false, automatic}, mma, true},
      {{120, true, automatic}, mma, true},      {{120, true, packed}, mma, false},
      {{110, true, automatic}, mma, true},      {{121, false, automatic}, mma, true},
  };
  const GroupedProblem up = problem(GroupedLayout::nt, 8, 1000, 512, 256),
                       down = problem(GroupedLayout::nt, 8, 1000, 256, 512);
  for (const Row& x : table) {
    SCOPED_TRACE(testing::Message() << "sm_" << x.means.architecture << ", CUTLASS " << x.means.cutlass << ", setting "
                                    << static_cast<int>(x.means.setting));
    EXPECT_EQ(choose_products(x.means, up, DType::bf16, DType::bf16), x.products);
    EXPECT_EQ(choose_fused(x.means, up, down, DType::bf16), x.fused);
    // fp32 out goes to CUTLASS for gradients of weights alone.
    EXPECT_EQ(choose_products(x.means, up, DType::bf16, DType::f32), x.products == cutlass ? mma : x.products);
    EXPECT_EQ(choose_products(x.means, problem(GroupedLayout::tn, 8, 1000, 512, 256), DType::bf16, DType::f32),
              x.products);
    // What no matrix unit takes.
    EXPECT_EQ(choose_products(x.means, up, DType::f32, DType::f32), plain);
    EXPECT_EQ(choose_products(x.means, problem(GroupedLayout::nt, 8, 1000, 512, 252), DType::bf16, DType::bf16), plain);
    EXPECT_FALSE(choose_fused(x.means, up, down, DType::f32));
    EXPECT_FALSE(choose_fused(x.means, problem(GroupedLayout::nt, 8, 1000, 508, 256), down, DType::bf16));
    EXPECT_FALSE(choose_fused(x.means, problem(GroupedLayout::nt, 0, 1000, 512, 256), down, DType::bf16));
  }
}

// Every tile once; those of 16 rows before the next 16; one after another share their column.
TEST(KernelsText, SaysWhatIsChosenAndWhy) {
  constexpr auto automatic = ExpertSetting::automatic, fused = ExpertSetting::fused;
  EXPECT_EQ(kernels_text({90, true, automatic}, {true, true}, true, DType::bf16),
            "kernels on sm_90 in bf16: dense products: cuBLAS; experts: CUTLASS, packed; attention: cuDNN, "
            "deterministic, for whole sequences without documents or a window, heads of up to 256 channels; else our "
            "mma.sync kernels");
  EXPECT_EQ(
      attention_text(80, true, false, DType::bf16),
      "cuDNN, its backward in any order of sums (run.deterministic = false), for whole sequences without documents or "
      "a window, heads of up to 128 channels; else our mma.sync kernels");
  EXPECT_EQ(kernels_text({86, true, automatic}, {true, false}, true, DType::bf16),
            "kernels on sm_86 in bf16: dense products: cuBLAS; experts: our mma.sync kernels, fused (CUTLASS's are for "
            "sm_90 and sm_100); attention: our mma.sync kernels (built without cuDNN)");
  EXPECT_EQ(
      kernels_text({90, true, automatic}, {true, true}, true, DType::f32),
      "kernels on sm_90 in f32: dense products: cuBLAS; experts: our tiles on the fp32 units (the matrix units take "
      "bf16); attention: our tiles on the fp32 units (the matrix units take bf16)");
  EXPECT_EQ(experts_text({90, true, fused}, DType::bf16), "our mma.sync kernels, fused, as ORTHANT_CUDA_EXPERTS says");
  EXPECT_EQ(experts_text({90, false, automatic}, DType::bf16), "our mma.sync kernels, fused (built without CUTLASS)");
  EXPECT_EQ(experts_text({100, true, automatic}, DType::bf16), "CUTLASS, packed");
  EXPECT_EQ(experts_text({103, false, automatic}, DType::bf16), "our mma.sync kernels, fused (built without CUTLASS)");
}

TEST(TilePlace, CountsEveryTileOnceInBands) {
  const std::vector<std::pair<int, int>> sizes = {{1, 1}, {1, 7}, {5, 3}, {16, 4}, {17, 4}, {50, 9}};
  for (const auto& [down, across] : sizes) {
    std::set<std::pair<int, int>> seen;
    int shared = 0, band = 0;
    TilePlace last{-1, -1};
    for (int number = 0; number < down * across; ++number) {
      const TilePlace place = tile_place(number, down, across);
      ASSERT_TRUE(place.row >= 0 && place.row < down && place.column >= 0 && place.column < across);
      EXPECT_TRUE(seen.insert({place.row, place.column}).second);
      EXPECT_GE(place.row / 16, band);
      band = place.row / 16;
      shared += place.column == last.column ? 1 : 0;
      last = place;
    }
    EXPECT_GE(shared, (down - (down + 15) / 16) * across) << down << " x " << across;
  }
}

// Element by element: the operands of every expert begin where the shapes in ops.h say.
TEST(GroupedProblem, PlacesEveryExpertsOperands) {
  const std::vector<std::int32_t> offset = {0, 3, 3, 10};
  for (const GroupedLayout layout : {GroupedLayout::nt, GroupedLayout::nn, GroupedLayout::tn}) {
    GroupedProblem p = problem(layout, 3, 12, 5, 7);
    p.offset = offset.data();
    for (std::int64_t e = 0; e < 3; ++e) {
      const RowRange rows = rows_of(p, e);
      const std::int64_t begin = offset[e], end = offset[static_cast<std::size_t>(e) + 1];
      EXPECT_EQ(rows.begin, begin);
      EXPECT_EQ(rows.end, end);
      const Group group = group_of(p, e, rows);
      const RowStrides strides = strides_of(p);
      if (layout == GroupedLayout::tn) {  // a [12, 7], b [12, 5], c [3, 7, 5]
        EXPECT_EQ(std::vector<std::int64_t>({group.m, group.n, group.k}),
                  std::vector<std::int64_t>({7, 5, end - begin}));
        EXPECT_EQ(std::vector<std::int64_t>({group.a, group.b, group.c}),
                  std::vector<std::int64_t>({begin * 7, begin * 5, e * 35}));
        EXPECT_EQ(std::vector<std::int64_t>({strides.a, strides.b, strides.c}), std::vector<std::int64_t>({7, 5, 5}));
      } else {  // a [12, 7], b [3, 5, 7] or [3, 7, 5], c [12, 5]
        EXPECT_EQ(std::vector<std::int64_t>({group.m, group.n, group.k}),
                  std::vector<std::int64_t>({end - begin, 5, 7}));
        EXPECT_EQ(std::vector<std::int64_t>({group.a, group.b, group.c}),
                  std::vector<std::int64_t>({begin * 7, e * 35, begin * 5}));
        EXPECT_EQ(std::vector<std::int64_t>({strides.a, strides.b, strides.c}),
                  std::vector<std::int64_t>({7, layout == GroupedLayout::nt ? 7 : 5, 5}));
      }
    }
  }
}

TEST(GroupedProblem, CutsOffsetsOffAtTheRowsThereAre) {
  GroupedProblem p = problem(GroupedLayout::nt, 3, 12, 8, 8);
  for (const std::vector<std::int32_t>& offset :
       {std::vector<std::int32_t>{0, 9, 15, 20}, std::vector<std::int32_t>{-4, 5, 2, 12}}) {
    p.offset = offset.data();
    for (std::int64_t e = 0; e < 3; ++e) {
      const RowRange rows = rows_of(p, e);
      EXPECT_TRUE(0 <= rows.begin && rows.begin <= rows.end && rows.end <= 12) << rows.begin << " " << rows.end;
    }
  }
}

}  // namespace
}  // namespace orthant::cuda::grouped_rules_test
