// What papers say that models take, against plans of the same models. Nothing of them is allocated.
#include <gtest/gtest.h>

#include <array>

#include "core/dry_run/planning.h"
#include "tests/support/experiment.h"

namespace orthant::published_test {
namespace {

using test::experiment;
using test::joined;
using test::Overrides;

const Overrides dense = {"moe.experts=0", R"(run.dtype="bf16")", R"(model.activation="gelu")",
                         R"(model.norm="layernorm")"};

constexpr double billion = 1e9;

// The papers' gradients are of two bytes.
const Overrides narrow = {R"(optimizer.gradient_dtype="bf16")"};

double elements(const RankPlan& plan) {
  double sum = 0;
  for (const HeldParam& p : plan.params) {
    double of_param = 1;
    for (std::int64_t size : p.size) {
      of_param *= static_cast<double>(size);
    }
    sum += of_param;
  }
  return sum;
}

// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), figure 1: 7.5
// billion parameters on 64 ranks, K = 12.
TEST(Published, ZeroOf7500MillionParametersOn64Ranks) {
  const double published[] = {120, 31.4, 16.6, 1.9};
  for (int stage = 0; stage <= 3; ++stage) {
    const Config config =
        experiment(joined(joined(dense, narrow), {"model.layers=36", "model.d_model=4096", "model.heads=32",
                                                  "model.d_ff=16384", "model.vocab_size=51200", "batch.sequences=64"}),
                   fmt::format("[plugins.data]\nsize = 64\nzero = {}\n", stage));
    const RankPlan plan = plan_rank(config, 0);
    const double parameters = elements(plan);
    EXPECT_NEAR(parameters / billion, 7.5, 0.3);
    const double bytes_of_each =
        static_cast<double>(plan.memory.weights + plan.memory.gradients + plan.memory.states) / parameters;
    EXPECT_NEAR(bytes_of_each * 7.5, published[stage], 0.01 * published[stage] + 0.05) << "stage " << stage;
    if (stage == 0) {
      EXPECT_NEAR(static_cast<double>(plan.memory.weights) / parameters, 2, 0.01);
      EXPECT_NEAR(static_cast<double>(plan.memory.gradients) / parameters, 2, 0.01);
      EXPECT_NEAR(static_cast<double>(plan.memory.states) / parameters, 12, 0.01);
    }
  }
}

// 12 bytes become 2 in blocks of 32 numbers with a byte each; only norms keep f32. The weights lose their master.
TEST(Published, LowMemoryOf7500MillionParameters) {
  const Overrides model = {"model.layers=36",
                           "model.d_model=4096",
                           "model.heads=32",
                           "model.d_ff=16384",
                           "model.vocab_size=51200",
                           "batch.sequences=64",
                           R"(optimizer.state_dtype="8bit")"};
  const auto bytes_of_each = [&](const Overrides& more, int stage) {
    const RankPlan plan = plan_rank(
        experiment(joined(joined(dense, model), more), fmt::format("[plugins.data]\nsize = 64\nzero = {}\n", stage)),
        0);
    EXPECT_NEAR(static_cast<double>(plan.memory.gradients) / elements(plan), stage < 2 ? 4 : 4.0 / 64, 0.001);
    return std::array<double, 2>{static_cast<double>(plan.memory.weights) / elements(plan),
                                 static_cast<double>(plan.memory.states) / elements(plan)};
  };
  const Overrides no_master = {R"(optimizer.master_weights="none")"};
  constexpr double states = 2 * (1 + 1.0 / 32);
  EXPECT_NEAR(bytes_of_each(no_master, 0)[0], 2, 0.001);
  EXPECT_NEAR(bytes_of_each(no_master, 0)[1], states, 0.001);
  EXPECT_NEAR(bytes_of_each({}, 0)[1], 4 + states, 0.001);
  EXPECT_NEAR(bytes_of_each(no_master, 1)[1], states / 64, 0.001);
  EXPECT_NEAR(bytes_of_each(no_master, 3)[0], 2.0 / 64, 0.001);
}

const Overrides gpt3 = {"model.d_model=12288",       "model.heads=96",
                        "model.d_ff=49152",          "model.vocab_size=50257",
                        "model.tie_embeddings=true", R"(model.positions="learned")",
                        "data.sequence_length=2048", "batch.sequences=1"};

// Rajbhandari et al., "ZeRO-Infinity" (2021), and the arithmetic of Brown et al. (2020): 175 billion parameters take
// 350 GB of 16-bit weights, as much of gradients, and 12 bytes each of Adam's states.
TEST(Published, Gpt3OnOneRank) {
  const RankPlan plan = plan_rank(experiment(joined(joined(dense, gpt3), joined(narrow, {"model.layers=96"}))), 0);
  EXPECT_NEAR(static_cast<double>(plan.memory.weights) / billion, 350, 3.5);
  EXPECT_NEAR(static_cast<double>(plan.memory.gradients) / billion, 350, 3.5);
  EXPECT_NEAR(static_cast<double>(plan.memory.states) / billion, 2100, 21);
}

// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022): a layer keeps
// s b h (34 + 5 a s / h) bytes. Ours keeps neither the two masks of dropout (1 each, they are functions of the token)
// nor anything of size a s s (attention computes its scores again): s b h 32, and a few numbers for each token.
TEST(Published, ActivationsOfALayer) {
  const auto activations = [](int layers, const char* recompute) {
    const Config config = experiment(joined(joined(dense, gpt3), {fmt::format("model.layers={}", layers),
                                                                  fmt::format(R"(memory.recompute="{}")", recompute)}));
    return static_cast<double>(plan_rank(config, 0).memory.peak_kinds[MemoryKind::activations]);
  };
  const double sbh = 2048.0 * 12288.0;
  EXPECT_NEAR((activations(3, "none") - activations(2, "none")) / sbh, 32, 0.1);
  EXPECT_NEAR((activations(3, "selective") - activations(2, "selective")) / sbh, 24, 0.1) << "8 of them are gelu's";
  EXPECT_NEAR((activations(3, "full") - activations(2, "full")) / sbh, 2, 0.1);
}

// The same paper, with tensor and sequence parallelism over t ranks: s b h (34 / t + 5 a s / (h t)), of which ours
// keeps 32 / t. Between their regions and within them a rank has its share of the rows, or of the channels, of every
// tensor.
TEST(Published, ActivationsOfALayerWithSequenceParallelism) {
  const auto activations = [](int layers, int ranks, const char* recompute) {
    const Config config =
        experiment(joined(joined(dense, gpt3), {"model.vocab_size=51200", fmt::format("model.layers={}", layers),
                                                fmt::format(R"(memory.recompute="{}")", recompute)}),
                   fmt::format("[plugins.tensor]\nsize = {}\nsequence_parallel = true\n", ranks));
    return static_cast<double>(plan_rank(config, 0).memory.peak_kinds[MemoryKind::activations]);
  };
  const double sbh = 2048.0 * 12288.0;
  for (int t : {2, 8}) {
    EXPECT_NEAR((activations(3, t, "none") - activations(2, t, "none")) / sbh, 32.0 / t, 0.1) << t;
    EXPECT_NEAR((activations(3, t, "full") - activations(2, t, "full")) / sbh, 2.0 / t, 0.1) << t;
  }
}

}  // namespace
}  // namespace orthant::published_test
