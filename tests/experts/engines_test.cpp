// The table of docs/internals/gpu.md, "Which GPU gets what", against the rules by which the device chooses; no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "experts/cuda/engines.h"
#include "tests/support/paths.h"

namespace orthant::cuda::engines_test {
namespace {

using Cells = std::vector<std::string>;

// The page's rows by compute capability: a row may name several. Without the last, of GPUs that are refused.
std::map<int, Cells> table() {
  std::ifstream page(paths::source("docs/internals/gpu.md"));
  std::map<int, Cells> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    inside = line.starts_with("## ") ? line == "## Which GPU gets what" : inside;
    if (!inside || !line.starts_with("| sm_")) {
      continue;
    }
    Cells cells;
    for (std::size_t at = 2, end = 0; (end = line.find(" |", at)) != std::string::npos; at = end + 3) {
      cells.push_back(line.substr(at, end - at));
    }
    const std::string gpus = cells.at(0).substr(0, cells.at(0).find(':'));
    const std::regex number("sm_([0-9]+)");
    for (std::sregex_iterator i(gpus.begin(), gpus.end(), number), none; i != none; ++i) {
      EXPECT_TRUE(rows.emplace(std::stoi((*i)[1]), cells).second) << "two rows for " << i->str();
    }
  }
  return rows;
}

std::string experts_cell(const Engines& engines) {
  const std::string rows = engines.fused ? ", fused" : ", packed";
  switch (engines.experts) {
    case ExpertProducts::cutlass: return "CUTLASS" + rows;
    case ExpertProducts::mma: return "ours, mma.sync" + rows;
    case ExpertProducts::plain: break;
  }
  return "ours, fp32 units";
}

std::string attention_cell(const Engines& engines) {
  switch (engines.attention) {
    case AttentionEngine::cudnn:
      return fmt::format("cuDNN, heads to {} channels; else ours, mma.sync", engines.cudnn_channels);
    case AttentionEngine::mma: return "ours, mma.sync";
    case AttentionEngine::plain: break;
  }
  return "ours, fp32 units";
}

// What a GPU runs of code for `gpus` (cmake/OrthantCudaToolkit.cmake), by the CUDA programming guide, "Compatibility":
// code of its major number and no later minor; with an `a` exactly that; with an `f` its family, for ours the major.
std::string code_for(int capability, const std::vector<std::string>& gpus) {
  std::string best = "PTX of sm_80";
  for (const std::string& gpu : gpus) {
    const int of = std::stoi(gpu);
    const bool exact = gpu.ends_with('a');
    if (exact ? of == capability : of / 10 == capability / 10 && of <= capability) {
      best = "sm_" + gpu;
    }
  }
  return best;
}

TEST(Engines, TheTableOfThePageIsWhatTheCodeChooses) {
  const std::map<int, Cells> rows = table();
  std::vector<int> capabilities;
  for (const auto& [capability, cells] : rows) {
    capabilities.push_back(capability);
  }
  EXPECT_THAT(capabilities, testing::ElementsAre(80, 86, 89, 90, 100, 103, 120, 121));
  for (const auto& [capability, cells] : rows) {
    SCOPED_TRACE("sm_" + std::to_string(capability));
    const bool cutlass = capability == 90 || capability == 100 || capability == 103;  // in a build for all GPUs
    const Engines engines = engines_for({capability, cutlass, ExpertSetting::automatic}, {true, true}, DType::bf16);
    ASSERT_EQ(cells.size(), 6u);
    EXPECT_EQ(cells[1], code_for(capability, {"80", "90a", "100f", "120"}));
    EXPECT_EQ(cells[2], engines.cublas ? "cuBLAS" : "ours, fp32 units");
    EXPECT_EQ(cells[3], experts_cell(engines));
    EXPECT_EQ(cells[4], attention_cell(engines));
    EXPECT_EQ(cells[5], "bf16, f32; i8, fp8 kept");
  }
}

TEST(Engines, WithoutLibrariesAreOurs) {
  for (const int capability : {80, 86, 89, 90, 100, 103, 120, 121}) {
    const Engines bf16 = engines_for({.architecture = capability}, {}, DType::bf16);
    EXPECT_FALSE(bf16.cublas);
    EXPECT_EQ(bf16.experts, ExpertProducts::mma) << capability;
    EXPECT_TRUE(bf16.fused);
    EXPECT_EQ(bf16.attention, AttentionEngine::mma);
    const Engines f32 = engines_for({capability, true, ExpertSetting::automatic}, {true, true}, DType::f32);
    EXPECT_EQ(f32.experts, ExpertProducts::plain) << capability;
    EXPECT_EQ(f32.attention, AttentionEngine::plain) << capability;
    EXPECT_FALSE(f32.fused);
  }
}

}  // namespace
}  // namespace orthant::cuda::engines_test
