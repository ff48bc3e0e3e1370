// The bytes that a rank holds between steps, measured, are those of the formula (plugins/data/README.md); and what a
// step needs besides is bounded by its layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "parallel/local/thread_world.h"
#include "tests/zero/zero_layouts.h"

namespace orthant::zero_test::memory_test {
namespace {

using test::experiment;
using test::Overrides;
using test::TestRank;

// A model of 1.3 million parameters, counted here by hand; activations of four tokens are small beside it.
constexpr std::int64_t d = 128, ff = 256, vocabulary = 251, blocks = 3, experts = 4;
constexpr std::int64_t embedding = vocabulary * d;
constexpr std::int64_t dense_block = 2 * d /* norms */ + 4 * d * d /* q k v o */ + experts * d /* router */;
constexpr std::int64_t expert_block = experts * 3 * d * ff;  // gate, up, down
constexpr std::int64_t head = d + vocabulary * d;

Overrides model(const std::string& dtype) {
  return {"model.d_model=128", "model.heads=4",
          "model.d_ff=256",    "model.vocab_size=251",
          "model.layers=3",    "moe.experts=4",
          "moe.top_k=1",       "data.sequence_length=4",
          "batch.sequences=4", "run.dtype=\"" + dtype + "\""};
}

// Parameters of a rank by what shares them: groups of `elements`, of which one rank holds all, sharded over `shards`.
struct Held {
  std::int64_t elements, shards;
};

// Bytes of one group at a stage. fp32: weights are their own master; gradients are always f32.
double bytes_of(const Held& group, int stage, bool bf16, std::int64_t whole_below) {
  const double p = static_cast<double>(group.elements);
  auto shared = [&](bool sharded) { return sharded ? p / static_cast<double>(group.shards) : p; };
  const double weight = (bf16 ? 2 : 4) * shared(stage >= 3 && group.elements >= whole_below);
  const double gradient = 4 * shared(stage >= 2);
  const double optimizer = (bf16 ? 12 : 8) * shared(stage >= 1);
  return weight + gradient + optimizer;
}

struct Measured {
  std::int64_t held = 0, peak = 0;  // of the rank with most
};

Measured measure(const Config& config) {
  Measured most;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    Device& device = rank.session().plan().device();
    rank.trainer().step(0);  // the order of the layers is known from here on
    device.reset_peak();
    rank.trainer().step(1);
    const MemoryUse use = device.memory();
    const std::lock_guard lock(mutex);
    most.held = std::max(most.held, use.current_bytes);
    most.peak = std::max(most.peak, use.peak_bytes);
  });
  return most;
}

class Memory : public testing::TestWithParam<std::tuple<int, int, const char*>> {};

TEST_P(Memory, IsWhatTheFormulaSays) {
  const auto& [stage, ranks, dtype] = GetParam();
  const bool bf16 = std::string(dtype) == "bf16";
  struct Layout {
    int expert;
    std::int64_t whole_below;
  };
  for (const auto& [expert, whole_below] : {Layout{1, 0}, Layout{2, 0}, Layout{1, 100000}}) {
    if (whole_below > 0 && stage < 3) {
      continue;
    }
    const std::int64_t replicas = ranks / expert;
    std::vector<Held> groups = {{embedding, ranks}, {head, ranks}};
    for (std::int64_t i = 0; i < blocks; ++i) {
      groups.push_back({dense_block, ranks});
      groups.push_back({expert_block / expert, replicas});
    }
    const double formula = std::accumulate(groups.begin(), groups.end(), 0.0, [&](double sum, const Held& group) {
      return sum + bytes_of(group, replicas == 1 && group.shards == 1 ? 0 : stage, bf16, whole_below);
    });
    const std::string table = zero(stage, ranks, fmt::format("whole_below = {}\n", whole_below));
    const Measured measured = measure(experiment(model(dtype), table + with_expert(expert)));
    const std::string name =
        fmt::format("stage{}_ranks{}_{}_expert{}_below{}", stage, ranks, dtype, expert, whole_below);
    EXPECT_NEAR(static_cast<double>(measured.held) / formula, 1, 0.05) << name;
    EXPECT_GE(static_cast<double>(measured.held) / formula, 1) << name << ": what is measured holds all of it";
    RecordProperty(name + "_held", std::to_string(measured.held));
    RecordProperty(name + "_formula", std::to_string(static_cast<std::int64_t>(formula)));
    RecordProperty(name + "_peak", std::to_string(measured.peak));
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, Memory,
                         testing::Combine(testing::Range(0, 4), testing::Values(2, 4), testing::Values("fp32", "bf16")),
                         [](const auto& cell) {
                           return fmt::format("stage{}_ranks{}_{}", std::get<0>(cell.param), std::get<1>(cell.param),
                                              std::get<2>(cell.param));
                         });

// What a step needs besides: at stage 3 the whole weights of the layer that is computed and of the next, and the whole
// gradients of a layer and of one group that waits for its sum. The deeper the model, the smaller a share that is.
TEST(Memory, PeakIsBoundedByLayers) {
  constexpr double layer = static_cast<double>(dense_block + expert_block);
  for (bool prefetch : {false, true}) {
    for (const char* micro : {"batch.micro_batch=0", "batch.micro_batch=1"}) {
      Overrides overrides = model("fp32");
      overrides.insert(overrides.end(), {"model.layers=6", "batch.sequences=8", micro});
      const Measured unsharded = measure(experiment(overrides, zero(0, 4)));
      const double activations = static_cast<double>(unsharded.peak - unsharded.held);
      const std::string table = zero(3, 4, fmt::format("whole_below = 0\nprefetch = {}\n", prefetch));
      const Measured measured = measure(experiment(overrides, table));
      const double besides = static_cast<double>(measured.peak - measured.held);
      EXPECT_LE(besides, 4 * (layer * (prefetch ? 2 : 1) + layer + expert_block) + activations) << prefetch << micro;
      EXPECT_GE(besides, 4 * 2 * layer) << "weights and gradients of a layer are whole while it runs";
    }
  }
}

}  // namespace
}  // namespace orthant::zero_test::memory_test
