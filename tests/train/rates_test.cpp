// optimizer.lr_of and no_decay: whole steps against a plain loop in fp64 with a rate and a decay for each parameter,
// and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/arch/trained_text.h"
#include "tests/support/experiment.h"

namespace orthant::rates_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;
using test::refusal;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// q and k lie beside v, and experts beside each other: neighbours with other rates.
const Overrides groups = {
    R"(optimizer.lr_of=["*.gate.weight", "*.layers.1.self_attn.[qk]_proj.weight", "*.layers.1.*", "*.experts.2.w1.*"])",
    "optimizer.lr_scales=[0.1, 3.0, 0.5, 2]",
    R"(optimizer.no_decay=["model.embed_tokens.weight", "*.self_attn.v_proj.weight", "*.experts.1.*"])"};

bool has(const std::string& name, const std::string& part) {
  return name.find(part) != std::string::npos;
}

// As written out by hand for the names of this model: the first pattern counts.
double scale_of(const std::string& name) {
  if (name.ends_with(".gate.weight")) {
    return 0.1;
  }
  if (has(name, "layers.1.")) {
    return has(name, "q_proj") || has(name, "k_proj") ? 3.0 : 0.5;
  }
  return has(name, "experts.2.w1") ? 2.0 : 1.0;
}
double decay_of(const std::string& name) {
  const bool none = has(name, "norm") || has(name, "embed_tokens") || has(name, "v_proj") || has(name, "experts.1.");
  return none ? 0 : 0.3;
}

struct State {
  std::vector<double> x, m, v;
};

void expect_near(const std::vector<float>& got, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], 5e-6 * (std::abs(expected[i]) + 0.01)) << what << " at " << i;
  }
}

class Rates : public testing::TestWithParam<const char*> {};

TEST_P(Rates, AreThoseOfEachParameter) {
  const bool sgd = GetParam() == std::string("sgd");
  OneRank rank(experiment(joined(
      groups, {fmt::format("optimizer.name=\"{}\"", GetParam()), "optimizer.lr=0.02", "optimizer.betas=[0.8, 0.95]",
               "optimizer.momentum=0.7", "optimizer.weight_decay=0.3", "optimizer.clip_grad_norm=0"})));
  std::map<std::string, State> all;
  for (const std::string& name : rank->names()) {
    const std::vector<float> x = rank->weight(name);
    all[name] = {{x.begin(), x.end()}, std::vector<double>(x.size()), std::vector<double>(x.size())};
  }
  std::map<double, int> seen;
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(rank->trainer().gradients(step).lr, 0.02) << "the base rate";
    std::map<std::string, std::vector<float>> gradients;
    for (const auto& [name, ignored] : all) {
      gradients[name] = rank->gradient(name);
    }
    rank->trainer().apply(step);
    for (auto& [name, of] : all) {
      const double lr = 0.02 * scale_of(name), decay = decay_of(name);
      ++seen[scale_of(name)];
      for (std::size_t i = 0; i < of.x.size(); ++i) {
        const double g = static_cast<double>(gradients[name][i]);
        if (sgd) {
          of.m[i] = 0.7 * of.m[i] + g + decay * of.x[i];
          of.x[i] -= lr * of.m[i];
        } else {
          of.m[i] = 0.8 * of.m[i] + 0.2 * g;
          of.v[i] = 0.95 * of.v[i] + 0.05 * g * g;
          const double m_hat = of.m[i] / (1 - std::pow(0.8, step + 1));
          const double v_hat = of.v[i] / (1 - std::pow(0.95, step + 1));
          of.x[i] -= lr * (m_hat / (std::sqrt(v_hat) + 1e-5) + decay * of.x[i]);
        }
      }
      expect_near(rank->weight(name), of.x, name);
    }
  }
  EXPECT_EQ(seen.size(), 5u) << "every pattern has named something";
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Rates, testing::Values("adamw", "sgd"),
                         [](const auto& made) { return std::string(made.param); });

// One step without decay moves a weight in proportion to its rate, whichever way the optimizer finds it.
TEST(Rates, MuonsStepsAreInProportion) {
  const Overrides muon = {R"(optimizer.name="muon")", "optimizer.weight_decay=0"};
  OneRank plain(experiment(muon)), scaled(experiment(joined(groups, muon)));
  std::map<std::string, std::vector<float>> before;
  for (const std::string& name : plain->names()) {
    before[name] = plain->weight(name);
  }
  plain->trainer().step(0);
  scaled->trainer().step(0);
  for (const auto& [name, x] : before) {
    const std::vector<float> a = plain->weight(name), b = scaled->weight(name);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double by_one = static_cast<double>(a[i]) - static_cast<double>(x[i]);
      const double by_scale = static_cast<double>(b[i]) - static_cast<double>(x[i]);
      ASSERT_NEAR(by_scale, scale_of(name) * by_one, 1e-6) << name << " at " << i;
    }
  }
}

// LoRA+ (Hayou et al., 2024): B learns faster than A.
TEST(Rates, AdaptersHaveThem) {
  const Overrides lora = {"lora.rank=2", R"(lora.targets=["*.q_proj.weight"])", R"(optimizer.name="sgd")",
                          "optimizer.weight_decay=0"};
  const Overrides plus = {R"(optimizer.lr_of=["*.lora_B.weight"])", "optimizer.lr_scales=[16]"};
  OneRank plain(experiment(lora)), scaled(experiment(joined(lora, plus)));
  plain->trainer().step(0);
  scaled->trainer().step(0);
  const std::string stem = "model.layers.0.self_attn.q_proj.";
  const std::vector<float> a = plain->weight(stem + "lora_B.weight"), b = scaled->weight(stem + "lora_B.weight");
  double moved = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    moved += std::abs(static_cast<double>(a[i]));
    ASSERT_NEAR(b[i], 16 * a[i], 1e-6);  // from 0
  }
  EXPECT_GT(moved, 0);
  EXPECT_EQ(plain->weight(stem + "lora_A.weight"), scaled->weight(stem + "lora_A.weight"));
}

TEST(Rates, AreSaidWhereTheyAreWritten) {
  EXPECT_THAT(rates_text(experiment().settings), IsEmpty());
  EXPECT_THAT(rates_text(experiment(groups).settings),
              ElementsAre("\"*.gate.weight\" learns at 0.1 times the rate: 2 parameters, 128 elements",
                          "\"*.layers.1.self_attn.[qk]_proj.weight\" learns at 3 times the rate: 2 parameters, 512 "
                          "elements",
                          HasSubstr("\"*.layers.1.*\" learns at 0.5 times the rate: 16 parameters"),
                          "\"*.experts.2.w1.*\" learns at 2 times the rate: 1 parameter, 256 elements",
                          HasSubstr("without decay besides norms and biases: 9 parameters")));
}

TEST(Rates, WhatCannotBeIsRefused) {
  const auto said = [](const Overrides& overrides) { return refusal(overrides, ""); };
  EXPECT_THAT(said({R"(optimizer.lr_of=["*.gate.weight"])"}), HasSubstr("0 numbers for 1 patterns of lr_of"));
  EXPECT_THAT(said({"optimizer.lr_scales=[2]"}), HasSubstr("1 numbers for 0 patterns of lr_of"));
  for (const char* bad : {"0", "-1", "1e300", "nan", "inf"}) {
    EXPECT_THAT(said({R"(optimizer.lr_of=["*"])", fmt::format("optimizer.lr_scales=[{}]", bad)}),
                HasSubstr("[optimizer] lr_scales: "))
        << bad;
  }
  EXPECT_THAT(said({R"(optimizer.lr_of=["*"])", "optimizer.lr_scales=[0]"}), HasSubstr("train.freeze"));
  EXPECT_THAT(said({R"(optimizer.lr_of=["*.gates.weight"])", "optimizer.lr_scales=[2]"}),
              AllOf(HasSubstr("optimizer.lr_of: \"*.gates.weight\" names no parameter of this model"),
                    HasSubstr("did you mean \"*.gate.weight\"?")));
  EXPECT_THAT(said({R"(optimizer.no_decay=["model.embed_token.weight"])"}),
              HasSubstr("did you mean \"model.embed_tokens.weight\"?"));
  EXPECT_THAT(said({R"(optimizer.lr_of=["*.layers.*", "*.gate.weight"])", "optimizer.lr_scales=[2, 0.1]"}),
              HasSubstr("\"*.gate.weight\" names only parameters that patterns before it name"));
  EXPECT_THAT(said({"model.tie_embeddings=true", R"(optimizer.no_decay=["lm_head.weight"])"}),
              HasSubstr("names no parameter of this model"));
  EXPECT_THAT(said(groups), HasSubstr("(accepted"));
}

}  // namespace
}  // namespace orthant::rates_test
