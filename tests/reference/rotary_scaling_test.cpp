// The frequencies of scaled rotary positions: what devices compute from the description that settings become, against
// the published rules in fp64 and against transformers 5.23, whose fp32 numbers are below.
#include "core/arch/rotary.h"
#include "core/device/rotary_rule.h"
#include "tests/reference/rig.h"
#include "tests/reference/rotary_oracle.h"

namespace orthant::test::rotary_scaling_test {
namespace {

struct Scaled {
  const char* name;
  std::int64_t channels;
  RotaryKeys model;
  std::vector<double> frequencies;  // of transformers
  double attention_factor;
};

RotaryKeys model_of(RopeScaling kind, double theta, double factor, std::int64_t positions) {
  RotaryKeys m;
  m.rope_scaling = kind;
  m.rope_theta = theta;
  m.rope_factor = factor;
  m.rope_original_positions = positions;
  return m;
}

std::vector<Scaled> published() {
  std::vector<Scaled> all = {
      {"none", 8, model_of(RopeScaling::none, 10000, 1, 0), {1, 0.1, 0.01, 0.001}, 1},
      {"linear", 8, model_of(RopeScaling::linear, 10000, 4, 0), {0.25, 0.0250000004, 0.00249999994, 0.000250000012}, 1},
      {"llama3",
       16,
       model_of(RopeScaling::llama3, 500000, 8, 8192),
       {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06},
       1},
      {"yarn",
       16,
       model_of(RopeScaling::yarn, 10000, 16, 2048),
       {1.0, 0.316227764, 0.100000001, 0.0242111888, 0.00531250006, 0.000938801211, 6.2500003e-05, 1.97642366e-05},
       1.2772588722239782},
      {"gpt_oss",
       16,
       model_of(RopeScaling::yarn, 150000, 32, 4096),
       {1.0, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05, 4.09997847e-06, 9.24208962e-07},
       1.3465735902799727},
      {"deepseek_v2",
       16,
       model_of(RopeScaling::yarn, 10000, 40, 4096),
       {1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05, 7.90569447e-06},
       0.9210423553163399},
      {"given_factor",
       8,
       model_of(RopeScaling::yarn, 10000, 4, 16),
       {1.0, 0.0250000004, 0.00249999994, 0.000250000012},
       1.25}};
  all[4].model.rope_truncate = false;
  all[5].model.rope_mscale = 0.707;
  all[5].model.rope_mscale_all_dim = 1;
  all[6].model.rope_beta_fast = 2;
  all[6].model.rope_beta_slow = 0.5;
  all[6].model.rope_attention_factor = 1.25;
  return all;
}

TEST(RotaryScaling, FrequenciesAreThoseOfTransformersAndOfThePapers) {
  for (const Scaled& one : published()) {
    SCOPED_TRACE(one.name);
    const RotaryScaling scaling = rotary_scaling(one.model, one.channels);
    const std::vector<double> papers = rotary_oracle::inverse_frequencies(one.model, one.channels);
    ASSERT_EQ(papers.size(), one.frequencies.size());
    for (std::size_t i = 0; i < papers.size(); ++i) {
      const double ours =
          rotary_frequency(static_cast<std::int64_t>(i), one.channels / 2, one.model.rope_theta, scaling);
      EXPECT_NEAR(ours / papers[i], 1, 1e-12) << i;
      EXPECT_NEAR(ours / one.frequencies[i], 1, 1e-6) << i;
    }
    EXPECT_NEAR(scaling.magnitude, one.attention_factor, 1e-12);
    EXPECT_NEAR(rotary_oracle::attention_factor(one.model), one.attention_factor, 1e-12);
  }
}

// The widths and lengths of published models, each pair by the papers' rules.
TEST(RotaryScaling, EveryPairOfWideHeads) {
  for (Scaled& one : published()) {
    for (const std::int64_t channels : {64, 128}) {
      const RotaryScaling scaling = rotary_scaling(one.model, channels);
      const std::vector<double> papers = rotary_oracle::inverse_frequencies(one.model, channels);
      for (std::size_t i = 0; i < papers.size(); ++i) {
        const double ours = rotary_frequency(static_cast<std::int64_t>(i), channels / 2, one.model.rope_theta, scaling);
        ASSERT_NEAR(ours / papers[i], 1, 1e-12) << one.name << " " << i;
      }
    }
  }
}

// DeepSeek's second factor, of scores: that of DeepSeek-V3's configuration, (0.1 ln 40 + 1)^2.
TEST(RotaryScaling, ScoresOfLatentAttention) {
  RotaryKeys m = model_of(RopeScaling::yarn, 10000, 40, 4096);
  EXPECT_EQ(rotary_score_factor(m), 1);
  m.rope_mscale = m.rope_mscale_all_dim = 1;
  EXPECT_NEAR(rotary_score_factor(m), 1.3688879454113936 * 1.3688879454113936, 1e-12);
  EXPECT_NEAR(rotary_scaling(m, 64).magnitude, 1, 1e-15);
  m.rope_scaling = RopeScaling::none;
  EXPECT_EQ(rotary_score_factor(m), 1);
}

}  // namespace
}  // namespace orthant::test::rotary_scaling_test
