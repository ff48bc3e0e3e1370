// Every parameter's gradient against central differences of the whole model's loss.
//
// The loss that a step minimises, from the numbers it reports (means over R routed layers):
//   loss + train.mtp_weight * mtp_loss + moe.aux_loss * R * aux_loss + moe.z_loss * R * z_loss
// Differences of fp32 losses are noisy, so derivatives are taken along unit directions through a whole parameter, a
// few of them, and compared as one vector. A direction along which some token changes its expert, or its seat, crosses
// a step of the loss: it is shortened, and measured only where routing stays.
#include <gtest/gtest.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/arch/links.h"
#include "tests/support/experiment.h"

namespace orthant::model_gradient_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;

constexpr int directions = 5;
constexpr double tolerance = 1e-2;  // of the derivatives' norm; a wrong factor or a missing part is far larger

double total(const StepReport& report, const Settings& settings) {
  const double routed = static_cast<double>(report.layers.size());
  const auto ahead = report.figures.find("mtp_loss");
  return report.loss + settings.train.mtp_weight * (ahead == report.figures.end() ? 0 : ahead->second) +
         routed * (settings.moe.aux_loss * report.aux_loss + settings.moe.z_loss * report.z_loss);
}

bool same_routing(const StepReport& a, const StepReport& b) {
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    if (a.layers[i].load != b.layers[i].load || a.layers[i].kept != b.layers[i].kept) {
      return false;
    }
  }
  return true;
}

std::vector<double> unit_direction(std::size_t n, std::uint32_t number) {
  std::vector<double> v(n);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    v[i] = static_cast<double>(normal({7, Purpose::test, number, 0}, i));
    squares += v[i] * v[i];
  }
  for (double& x : v) {
    x /= std::sqrt(squares);
  }
  return v;
}

class Probe {
 public:
  explicit Probe(const Config& config) : settings_(config.settings), rank_(config) {
    for (const std::string& name : rank_->names()) {
      leave_zero(name);
    }
    middle_ = rank_->trainer().gradients(0);
    for (const std::string& name : rank_->names()) {
      gradients_[name] = rank_->gradient(name);
    }
  }

  const std::map<std::string, std::vector<float>>& gradients() const { return gradients_; }
  const StepReport& report() const { return middle_; }

  // d loss / d h at w + h v; nothing where routing changes even for the shortest step. Where it changed unseen (a
  // token's two experts in another order, say), two steps disagree.
  std::optional<double> derivative(const std::string& name, const std::vector<double>& v) {
    const std::vector<float> w = rank_->weight(name);
    std::optional<double> found;
    for (double h = 2e-2; h > 2e-3 && !found.has_value(); h /= 2) {
      const std::optional<double> wide = slope(name, w, v, h);
      const std::optional<double> narrow = wide.has_value() ? slope(name, w, v, h / 2) : std::nullopt;
      if (narrow.has_value() && std::abs(*wide - *narrow) <= 1e-2 * std::abs(*wide) + 1e-4) {
        found = wide;
      }
    }
    rank_->set_weight(name, w);
    return found;
  }

 private:
  // What begins at zero may be a factor of another gradient, which would then be zero too.
  void leave_zero(const std::string& name) {
    std::vector<float> w = rank_->weight(name);
    if (std::all_of(w.begin(), w.end(), [](float x) { return x == 0; })) {
      const RandomKey key{7, Purpose::test, 1'000'000, 0};
      for (std::size_t i = 0; i < w.size(); ++i) {
        w[i] = 0.2f * normal(key, i);
      }
      rank_->set_weight(name, w);
    }
  }
  std::optional<double> slope(const std::string& name, const std::vector<float>& w, const std::vector<double>& v,
                              double h) {
    const StepReport up = at(name, w, v, h), down = at(name, w, v, -h);
    if (!same_routing(up, middle_) || !same_routing(down, middle_)) {
      return std::nullopt;
    }
    return (total(up, settings_) - total(down, settings_)) / (2 * h);
  }
  StepReport at(const std::string& name, const std::vector<float>& w, const std::vector<double>& v, double h) {
    std::vector<float> moved(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
      moved[i] = static_cast<float>(static_cast<double>(w[i]) + h * v[i]);
    }
    rank_->set_weight(name, moved);
    return rank_->trainer().gradients(0);
  }

  Settings settings_;
  OneRank rank_;
  StepReport middle_;
  std::map<std::string, std::vector<float>> gradients_;
};

void expect_differences(Overrides overrides) {
  overrides.insert(overrides.end(), {"batch.sequences=2", "data.sequence_length=8", "model.init_std=0.3"});
  Probe probe(experiment(overrides));
  int measured = 0, possible = 0;
  std::uint32_t number = 0;
  for (const auto& [name, gradient] : probe.gradients()) {
    double difference = 0, norm = 0, length = 0;
    for (float g : gradient) {
      length += static_cast<double>(g) * static_cast<double>(g);
    }
    int here = 0;
    for (int d = 0; d < directions; ++d) {
      ++possible;
      const std::vector<double> v = unit_direction(gradient.size(), number++);
      const std::optional<double> numeric = probe.derivative(name, v);
      if (!numeric.has_value()) {
        continue;
      }
      ++here;
      double analytic = 0;
      for (std::size_t i = 0; i < v.size(); ++i) {
        analytic += v[i] * static_cast<double>(gradient[i]);
      }
      difference += (*numeric - analytic) * (*numeric - analytic);
      norm += analytic * analytic;
    }
    measured += here;
    // What rounding alone makes of two losses that are far apart by nothing: gradients near zero cannot be measured.
    const double rounding = 3e-5 * std::sqrt(here);
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm) + rounding)
        << name << ": |gradient| " << std::sqrt(length) << ", derivatives " << std::sqrt(norm);
    if (name.find("gate.weight") != std::string::npos) {
      EXPECT_GE(here, 2) << name << ": routing changed along nearly every direction";
    }
  }
  EXPECT_GT(measured, possible * 3 / 4);
}

TEST(ModelGradient, Mixtral) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.kv_heads=2"});
}

TEST(ModelGradient, WithBalanceLoss) {
  expect_differences({"moe.aux_loss=2", "moe.z_loss=0"});
}

TEST(ModelGradient, WithZLoss) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0.5"});
}

TEST(ModelGradient, WithCapacityThatDrops) {
  const Overrides overrides = {"moe.capacity_factor=0.75", "moe.aux_loss=0.5", "moe.z_loss=0.1"};
  expect_differences(overrides);
}

TEST(ModelGradient, SwitchTransformer) {
  expect_differences({R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0", "moe.aux_loss=0.5",
                      R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")",
                      "model.tie_embeddings=true"});
}

TEST(ModelGradient, GShard) {
  expect_differences({R"(moe.router="gshard")", "moe.capacity_factor=1.0", "moe.aux_loss=0.5"});
}

TEST(ModelGradient, ExpertChoice) {
  expect_differences({R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=2.0", "moe.aux_loss=0.5",
                      "moe.z_loss=0.1"});
}

TEST(ModelGradient, MixtureOfDepths) {
  expect_differences(
      {"moe.experts=1", R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=0.5", "moe.z_loss=0.1"});
  expect_differences(
      {R"(moe.router="expert_choice")", R"(moe.score="sigmoid")", "moe.top_k=0", "moe.capacity_factor=1.5"});
}

TEST(ModelGradient, UnnormalizedWeightsAndSharedExperts) {
  expect_differences({"moe.normalize_weights=false", "moe.shared_experts=2", "moe.d_expert=8"});
}

TEST(ModelGradient, ScoresBySigmoid) {
  expect_differences({R"(moe.score="sigmoid")", "moe.top_k=2", "moe.aux_loss=0.5", "moe.z_loss=0.1"});
  expect_differences({R"(moe.score="sigmoid")", "moe.normalize_weights=false", "moe.capacity_factor=1.0"});
}

TEST(ModelGradient, DropoutAndJitter) {
  expect_differences({"model.dropout=0.2", "moe.jitter=0.2", "moe.aux_loss=0.5"});
}

TEST(ModelGradient, SomeBlocksDenseAndSeveralMicroBatches) {
  expect_differences({"moe.every=2", "model.layers=3", "batch.micro_batch=1"});
}

TEST(ModelGradient, NormsOfHeadsBiasesAndWideHeads) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.qk_norm=true", "model.biases=true", "model.kv_heads=2",
                      "model.head_dim=6"});
}

TEST(ModelGradient, NormOverAllHeadsAndOutputBias) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.qk_norm=true", R"(model.qk_norm_over="all")",
                      "model.output_bias=true", "model.kv_heads=2"});
}

TEST(ModelGradient, AttentionSinks) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.attention_sinks=true", "model.kv_heads=2"});
}

TEST(ModelGradient, ScaledRotation) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", R"(model.rope_scaling="yarn")", "model.rope_factor=8",
                      "model.rope_original_positions=16", "model.rope_interleaved=true", "model.head_dim=8"});
}

TEST(ModelGradient, HeadsRotatedInPart) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.rotary_channels=6", "model.head_dim=8",
                      "model.kv_heads=2", "model.qk_norm=true"});
}

TEST(ModelGradient, LatentAttention) {
  const Overrides latent = {"moe.aux_loss=0",
                            "moe.z_loss=0",
                            R"(model.attention="latent")",
                            "model.kv_lora_rank=6",
                            "model.qk_nope_head_dim=4",
                            "model.qk_rope_head_dim=4",
                            "model.v_head_dim=3",
                            R"(model.rope_scaling="yarn")",
                            "model.rope_factor=8",
                            "model.rope_original_positions=16",
                            "model.rope_beta_fast=2",
                            "model.rope_beta_slow=0.25",
                            "model.rope_mscale=0.7",
                            "model.rope_mscale_all_dim=1.1"};
  expect_differences(latent);
  expect_differences(test::joined(latent, {"model.q_lora_rank=5", "model.rope_interleaved=true"}));
}

TEST(ModelGradient, SharedGateScaledWeightsFirstDense) {
  expect_differences({"moe.shared_experts=1", "moe.d_shared=12", "moe.shared_gate=true", "moe.weight_scale=2.5",
                      "moe.first_dense=1", "moe.d_expert=8", "moe.aux_loss=0.5"});
}

TEST(ModelGradient, SlidingWindow) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.sliding_window=3"});
}

TEST(ModelGradient, WindowInEverySecondBlock) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.sliding_window=3", "model.full_attention_every=2"});
}

TEST(ModelGradient, GptOss) {
  const Overrides model = {"moe.aux_loss=0.5",
                           "moe.z_loss=0.1",
                           "model.attention_sinks=true",
                           "model.biases=true",
                           "model.output_bias=true",
                           "model.sliding_window=3",
                           "model.full_attention_every=2",
                           R"(model.activation="clamped_swiglu")",
                           "moe.router_bias=true",
                           "moe.expert_bias=true"};
  expect_differences(model);
  expect_differences(test::joined(model, {"moe.capacity_factor=0.75", "moe.aux_loss=0"}));
  expect_differences(test::joined(model, {R"(model.activation="gelu")"}));
}

TEST(ModelGradient, NormsBehindBranches) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", R"(model.norm_place="after")", "model.residual_scale=0.7"});
  expect_differences({"moe.experts=0", R"(model.norm_place="both")", "model.norm_plus_one=true"});
}

TEST(ModelGradient, Gemma) {
  expect_differences({"moe.experts=0", "model.attention_softcap=0.8", "model.logit_softcap=1.5",
                      "model.attention_scale=0.9", "model.embedding_scale=3", "model.norm_plus_one=true",
                      R"(model.norm_place="both")", R"(model.activation="geglu")", "model.tie_embeddings=true",
                      "model.sliding_window=3", "model.full_attention_every=2", "model.rope_local_theta=100",
                      "model.kv_heads=2"});
}

TEST(ModelGradient, Granite) {
  expect_differences({"moe.aux_loss=0.5", "moe.z_loss=0", "model.embedding_scale=4", "model.residual_scale=0.3",
                      "model.logit_divisor=0.5", "model.attention_scale=0.6"});
}

TEST(ModelGradient, Phi35) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", R"(moe.router="sparsemixer")", "moe.normalize_weights=false",
                      "moe.sparsemixer_width=0.4", "moe.top_k=2", "model.head_bias=true", R"(model.norm="layernorm")",
                      "model.biases=true", "model.output_bias=true", R"(model.rope_scaling="longrope")",
                      "model.rope_factor=8", "model.rope_original_positions=4", "model.head_dim=6",
                      "model.rope_short_factors=[1.0, 1.0, 1.0]", "model.rope_long_factors=[1.0, 2.0, 4.0]"});
}

TEST(ModelGradient, HeadsNormedAfterRotation) {
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.qk_norm=true", "model.qk_norm_rotated=true",
                      "model.kv_heads=2", "moe.shared_experts=1"});
}

TEST(ModelGradient, MultiTokenPrediction) {
  expect_differences({"moe.aux_loss=0.5", "moe.z_loss=0.1", "model.mtp_depth=1", "train.mtp_weight=0.8"});
  expect_differences({"moe.aux_loss=0", "moe.z_loss=0", "model.mtp_depth=2", "model.tie_embeddings=true",
                      R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")"});
}

TEST(ModelGradient, DenseModel) {
  expect_differences({"moe.experts=0"});
}

}  // namespace
}  // namespace orthant::model_gradient_test
