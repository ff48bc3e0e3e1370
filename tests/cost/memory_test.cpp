// Memory against the formulas and tables of the papers that it follows.
#include "apps/cost/memory.h"

#include <gtest/gtest.h>

#include "apps/cost/clock.h"
#include "tests/cost/shapes.h"

namespace orthant::cost_test {
namespace {

using cost::Layout;
using cost::ModelShape;

// Rajbhandari et al., "ZeRO", SC 2020, table 1 and figure 1: 7.5 billion parameters on 64 ranks take 120 GB, 31.4 GB
// with the states divided, 16.6 GB with the gradients too, 1.9 GB with everything. Gradients are of 2 bytes there.
TEST(Memory, StatesAreThoseOfTheZeroTable) {
  ModelShape model = gpt_175b();
  model.layers = 100;
  model.hidden = 2500;  // 12 l h^2 = 7.5e9
  model.ffn = 4 * model.hidden;
  model.heads = model.kv_heads = 20;
  model.head_size = 125;
  model.vocabulary = 1;
  model.biases = model.learned_positions = false;
  Layout layout = layout_of(64, 1, 1, 64, 1);
  layout.narrow_gradients = true;
  for (const auto& [zero, table] : {std::pair(0, 120e9), {1, 31.4e9}, {2, 16.6e9}, {3, 1.88e9}}) {
    layout.zero = zero;
    const cost::StageMemory memory = cost::stage_memory(model, layout, 0);
    EXPECT_NEAR((memory.weights + memory.gradients + memory.states) / table, 1, 0.01) << zero;
  }
}

// Korthikanti et al. (arXiv 2205.05198), table 2, bytes of one block: s b h (10 + 24 / t + 5 a s / (h t)) with tensor
// ranks, s b h / t (34 + 5 a s / h) with sequence parallelism too, 34 s b h / t with the core of attention computed
// again, 2 s b h with everything computed again.
TEST(Memory, ActivationsAreThoseOfTheTable) {
  const ModelShape model = gpt_175b();
  const double sbh = model.sequence * model.hidden, t = 8, scores = 5 * model.heads * model.sequence / model.hidden;
  Layout layout = layout_of(8, 8, 1, 1, 1);
  layout.fused_attention = false;
  const auto of_block = [&] { return cost::stage_memory(model, layout, 0).activations / model.layers; };
  EXPECT_NEAR(of_block() / (sbh * (10 + 24 / t + scores / t)), 1, 1e-9);
  layout.sequence_parallel = true;
  EXPECT_NEAR(of_block() / (sbh / t * (34 + scores)), 1, 1e-9);
  layout.recompute = cost::Recompute::selective;
  EXPECT_NEAR(of_block() / (34 * sbh / t), 1, 1e-9);
  layout.sequence_parallel = false;
  layout.recompute = cost::Recompute::full;
  EXPECT_NEAR(of_block() / (2 * sbh), 1, 1e-9);
}

TEST(Memory, StagesKeepWhatTheClockSays) {
  const ModelShape model = gpt_175b();
  for (const int chunks : {1, 3}) {
    Layout layout = layout_of(8, 1, 8, 16, 1);
    layout.chunks = chunks;
    const cost::PipelineProgram program =
        chunks > 1 ? cost::interleaved(8, chunks, 16) : cost::one_forward_one_backward(8, 16);
    const cost::ClockResult clock = cost::run_clock(
        program, [](cost::Pass pass, int, int) { return pass == cost::Pass::forward ? 1.0 : 2.0; }, 0);
    Layout one = layout;
    one.pipeline = 1;
    one.chunks = 1;
    const double block = cost::stage_memory(model, one, 0).activations / model.layers;
    const double blocks_of_piece = model.layers / 8.0 / chunks;
    for (const int stage : {0, 3, 7}) {
      EXPECT_NEAR(cost::stage_memory(model, layout, stage).activations / block / blocks_of_piece, clock.kept[stage],
                  1e-6)
          << chunks << " chunks, stage " << stage;
    }
  }
}

TEST(Memory, ParametersAreTheModels) {
  const ModelShape model = gpt_175b();
  const Layout one = layout_of(1, 1, 1, 1, 1);
  const double weights = cost::stage_memory(model, one, 0).weights / cost::half_bytes;
  EXPECT_NEAR(weights / 174.6e9, 1, 2e-3);  // as Narayanan et al. count it
  double divided = 0;
  const Layout stages = layout_of(32, 4, 8, 1, 1);
  for (int stage = 0; stage < 8; ++stage) {
    divided += 4 * cost::stage_memory(model, stages, stage).weights / cost::half_bytes;
  }
  EXPECT_NEAR(divided / (weights + model.vocabulary * model.hidden), 1, 1e-3);  // the table is on two stages
}

TEST(Memory, ThePeakIsOfTheFullestStage) {
  const ModelShape model = gpt_175b();
  const Layout layout = layout_of(64, 8, 8, 64, 1);
  const double peak = cost::peak_memory(model, layout).total();
  EXPECT_EQ(peak, cost::stage_memory(model, layout, 0).total());
  EXPECT_GT(peak, cost::stage_memory(model, layout, 4).total());
}

}  // namespace
}  // namespace orthant::cost_test
