// A language whose entropy is known: the floor of a power law through final losses is that entropy.
#include <gtest/gtest.h>

#include <cmath>

#include "apps/check/experiment.h"
#include "bench/fit/power_law.h"
#include "core/data/source.h"
#include "tests/support/experiment.h"

namespace orthant::known_entropy_test {
namespace {

constexpr const char* tiny = R"(
[run]
threads = 1
[data]
source = "synthetic"
sequence_length = 64
validation_sequences = 1000
[batch]
sequences = 16
[model]
layers = 1
d_model = 16
heads = 2
d_ff = 32
vocab_size = 64
[optimizer]
lr = 0.01
schedule = "cosine"
warmup_steps = 10
weight_decay = 0.0
)";

LossAt final_loss(int steps) {
  test::OneRank rank(config_from_text(tiny, {"run.steps=" + std::to_string(steps)}));
  double tokens = 0;
  for (int step = 0; step < steps; ++step) {
    tokens += static_cast<double>(rank->trainer().step(step).tokens);
  }
  return {tokens, rank->trainer().validate(), static_cast<std::size_t>(steps)};
}

// Runs of 75 to 380 steps, each to the end of its schedule. The longest is still further from the entropy than the
// floor may be.
TEST(KnownEntropy, IsTheFloorOfAPowerLawToAHundredthOfANat) {
  std::vector<LossAt> losses;
  for (const int steps : {75, 112, 168, 253, 380}) {
    losses.push_back(final_loss(steps));
  }
  const double entropy = synthetic_entropy(config_from_text(tiny, {}).settings);
  const PowerLawFit fit = fit_power_law(losses, {.resamples = 200});
  EXPECT_GT(losses.back().loss, entropy + 0.01);
  EXPECT_NEAR(fit.law.floor, entropy, 0.01);
  EXPECT_LT(fit.residual_rms, 0.005);
}

}  // namespace
}  // namespace orthant::known_entropy_test
