// The experts of a whole model: idle ones, renumbered ones, and the coefficient of the balance loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "apps/verify/verify.h"
#include "tests/support/experiment.h"

namespace orthant::experts_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;

std::string gate(int layer) {
  return fmt::format("model.layers.{}.block_sparse_moe.gate.weight", layer);
}
std::string expert(int layer, int e, const char* matrix) {
  return fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", layer, e, matrix);
}

// --- an expert without tokens

TEST(Experts, IdleExpertHasZeroGradientAndStillDecays) {
  OneRank rank(experiment({R"(moe.router="switch")", "moe.top_k=1", "moe.aux_loss=0", "optimizer.lr=0.1",
                           "optimizer.weight_decay=0.5", "optimizer.betas=[0.5, 0.5]"}));
  rank->trainer().step(0);
  // From here on the first expert of each layer gets every token: equal logits, and ties go to the lower number.
  for (int layer = 0; layer < 2; ++layer) {
    rank->set_weight(gate(layer), std::vector<float>(4 * 16, 0.0f));
  }
  const std::string name = expert(1, 3, "w2");
  const std::vector<float> weight = rank->weight(name), m = rank->state("moment1", name),
                           v = rank->state("moment2", name);
  ASSERT_GT(std::abs(m[0]), 0) << "it did learn in the first step";
  const StepReport report = rank->trainer().step(1);
  ASSERT_EQ(report.layers[1].load[3], 0);
  EXPECT_THAT(rank->gradient(name), testing::Each(0.0f)) << "zero, not what the last step left";
  const std::vector<float> after = rank->weight(name), m_after = rank->state("moment1", name),
                           v_after = rank->state("moment2", name);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    EXPECT_FLOAT_EQ(m_after[i], 0.5f * m[i]);
    EXPECT_FLOAT_EQ(v_after[i], 0.5f * v[i]);
    const double m_hat = 0.5 * static_cast<double>(m[i]) / 0.75, v_hat = 0.5 * static_cast<double>(v[i]) / 0.75;
    const double expected = static_cast<double>(weight[i]) * (1 - 0.1 * 0.5) - 0.1 * m_hat / (std::sqrt(v_hat) + 1e-5);
    EXPECT_NEAR(static_cast<double>(after[i]), expected, 1e-6);
  }
}

// --- renumbering

// Expert e of the second model is expert order[e] of the first.
constexpr std::array<int, 4> order = {2, 0, 3, 1};

void copy_renumbered(OneRank& from, OneRank& to) {
  for (const std::string& name : from->names()) {
    to->set_weight(name, from->weight(name));
  }
  for (int layer = 0; layer < 2; ++layer) {
    const std::vector<float> rows = from->weight(gate(layer));
    std::vector<float> permuted;
    for (int e = 0; e < 4; ++e) {
      const auto row = rows.begin() + order[e] * 16;
      permuted.insert(permuted.end(), row, row + 16);
    }
    to->set_weight(gate(layer), permuted);
    for (const char* matrix : {"w1", "w2", "w3"}) {
      for (int e = 0; e < 4; ++e) {
        to->set_weight(expert(layer, e, matrix), from->weight(expert(layer, order[e], matrix)));
      }
    }
  }
}

TEST(Experts, RenumberingThemRenumbersTheResult) {
  const std::vector<Overrides> cases = {
      {},
      {"moe.capacity_factor=1.0"},
      {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"},
      {R"(moe.router="gshard")", "moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"},
  };
  for (const Overrides& overrides : cases) {
    OneRank one(experiment(overrides)), other(experiment(overrides));
    copy_renumbered(one, other);
    const StepReport a = one->trainer().gradients(0), b = other->trainer().gradients(0);
    EXPECT_NEAR(b.loss, a.loss, 1e-6);
    EXPECT_NEAR(b.aux_loss, a.aux_loss, 1e-6);
    EXPECT_NEAR(b.z_loss, a.z_loss, 1e-6);
    EXPECT_NEAR(b.grad_norm, a.grad_norm, 1e-5 * a.grad_norm);
    for (int layer = 0; layer < 2; ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      for (std::size_t e = 0; e < 4; ++e) {
        const auto was = static_cast<std::size_t>(order[e]);
        EXPECT_EQ(b.layers[at].load[e], a.layers[at].load[was]);
        EXPECT_EQ(b.layers[at].kept[e], a.layers[at].kept[was]);
        for (const char* matrix : {"w1", "w2", "w3"}) {
          EXPECT_LE(test::relative_difference(other->gradient(expert(layer, static_cast<int>(e), matrix)),
                                              one->gradient(expert(layer, order[e], matrix))),
                    1e-5);
        }
      }
    }
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight"}) {
      EXPECT_LE(test::relative_difference(other->gradient(name), one->gradient(name)), 1e-5) << name;
    }
  }
}

// --- auxiliary losses

TEST(Experts, CoefficientsChangeTheRoutersGradientInProportion) {
  auto gradient = [](double aux, double z) {
    OneRank rank(experiment({fmt::format("moe.aux_loss={:.1f}", aux), fmt::format("moe.z_loss={:.1f}", z)}));
    rank->trainer().gradients(0);
    return rank->gradient(gate(1));
  };
  const std::vector<float> none = gradient(0, 0);
  for (const auto& [aux, z] : std::vector<std::pair<double, double>>{{1, 0}, {0, 1}}) {
    const std::vector<float> once = gradient(aux, z), twice = gradient(2 * aux, 2 * z);
    EXPECT_GT(test::relative_difference(once, none), 1e-2);
    std::vector<float> expected;
    for (std::size_t i = 0; i < none.size(); ++i) {
      expected.push_back(2 * once[i] - none[i]);
    }
    EXPECT_LE(test::relative_difference(twice, expected), 1e-5);
  }
}

// The report shows the losses before their coefficients, whatever those are.
TEST(Experts, ReportedLossesDoNotDependOnTheirCoefficients) {
  OneRank a(experiment({"moe.aux_loss=0", "moe.z_loss=0"})), b(experiment({"moe.aux_loss=3", "moe.z_loss=2"}));
  const StepReport without = a->trainer().gradients(0), with = b->trainer().gradients(0);
  EXPECT_EQ(without.loss, with.loss);
  EXPECT_EQ(without.aux_loss, with.aux_loss);
  EXPECT_EQ(without.z_loss, with.z_loss);
  EXPECT_GE(without.aux_loss, 0.9) << "1 when balanced";
}

// A refused step leaves nothing behind: with sound weights the same step gives the same bits as ever.
TEST(Experts, StepAfterARefusedOneIsClean) {
  OneRank sound(experiment()), hurt(experiment());
  for (const std::string& name : {std::string("lm_head.weight"), gate(0), expert(1, 2, "w1"), expert(0, 0, "w2")}) {
    const std::vector<float> weight = hurt->weight(name);
    std::vector<float> poisoned = weight;
    poisoned[0] = std::numeric_limits<float>::infinity();
    hurt->set_weight(name, poisoned);
    EXPECT_THROW(hurt->trainer().step(0), Error) << name;
    hurt->set_weight(name, weight);
  }
  EXPECT_EQ(hurt->trainer().gradients(0).loss, sound->trainer().gradients(0).loss);
  for (const std::string& name : sound->names()) {
    EXPECT_EQ(hurt->gradient(name), sound->gradient(name)) << name;
    EXPECT_EQ(hurt->weight(name), sound->weight(name)) << name;
  }
}

// Held-out loss: no gradients, no noise, and it does not disturb training.
TEST(Experts, ValidationLeavesTrainingAlone) {
  const Overrides overrides = {"model.dropout=0.5", "moe.jitter=0.5"};
  OneRank one(experiment(overrides)), other(experiment(overrides));
  const double first = other->trainer().validate();
  EXPECT_EQ(other->trainer().validate(), first) << "no dropout, no jitter";
  one->trainer().gradients(0);
  other->trainer().gradients(0);
  other->trainer().validate();
  one->trainer().apply(0);
  other->trainer().apply(0);
  for (const std::string& name : one->names()) {
    EXPECT_EQ(one->weight(name), other->weight(name)) << name;
  }
}

}  // namespace
}  // namespace orthant::experts_test
