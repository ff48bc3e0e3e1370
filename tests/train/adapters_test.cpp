// Adapters on one rank: against weights that were merged by hand, naive sums in fp64, and experts without tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/arch/trained.h"
#include "tests/support/experiment.h"

namespace orthant::train_adapters_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;

// float -> double, [rows, columns].
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

Matrix matrix(const std::vector<float>& values, std::int64_t rows) {
  return {rows, static_cast<std::int64_t>(values.size()) / rows, {values.begin(), values.end()}};
}

Matrix transposed(const Matrix& m) {
  Matrix t{m.columns, m.rows, std::vector<double>(m.values.size())};
  for (std::int64_t i = 0; i < m.rows; ++i) {
    for (std::int64_t j = 0; j < m.columns; ++j) {
      t.values[static_cast<std::size_t>(j * m.rows + i)] = m.at(i, j);
    }
  }
  return t;
}

// scale a b.
Matrix product(double scale, const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, {}};
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.columns; ++k) {
        sum += a.at(i, k) * b.at(k, j);
      }
      c.values.push_back(scale * sum);
    }
  }
  return c;
}

std::vector<float> floats(const Matrix& m) {
  return {m.values.begin(), m.values.end()};
}

constexpr int rank = 3;
constexpr double scale = 5.0 / rank;
const Overrides adapters = {"lora.rank=3", "lora.alpha=5", R"(lora.targets=["*"])"};

// B is drawn: with zeros neither the merged weights nor dA would show anything.
void draw_b(test::TestRank& of, const std::string& name) {
  std::vector<float> values = of.weight(name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.1f * static_cast<float>(std::sin(static_cast<double>(i * 7 + name.size())));
  }
  of.set_weight(name, values);
}

class WithAdapters : public testing::TestWithParam<test::Model> {};

TEST_P(WithAdapters, GivesLossAndGradientsOfTheMergedWeights) {
  const Overrides& model = GetParam().overrides;
  OneRank adapted(experiment(joined(model, adapters))), merged(experiment(model));
  std::vector<std::string> matrices;
  for (const std::string& name : adapted->names()) {
    if (name.ends_with(".lora_B.weight")) {
      draw_b(*adapted, name);
      matrices.push_back(name.substr(0, name.size() - std::string("lora_B.weight").size()) + "weight");
    }
  }
  ASSERT_GT(matrices.size(), 10);
  for (const std::string& name : matrices) {
    const std::vector<float> w = adapted->weight(name);
    const Matrix a = matrix(adapted->weight(adapter_name(name, 'A')), rank);
    const Matrix bt =
        transposed(matrix(adapted->weight(adapter_name(name, 'B')), static_cast<std::int64_t>(w.size()) / a.columns));
    Matrix sum = product(scale, transposed(bt), a);
    for (std::size_t i = 0; i < w.size(); ++i) {
      sum.values[i] += w[i];
    }
    merged->set_weight(name, floats(sum));
  }
  const StepReport here = adapted->trainer().gradients(0), there = merged->trainer().gradients(0);
  EXPECT_NEAR(here.loss, there.loss, 1e-5 * there.loss);
  double squares = 0;
  for (const std::string& name : matrices) {
    const std::vector<float> w = merged->weight(name);
    const Matrix a = matrix(adapted->weight(adapter_name(name, 'A')), rank);
    const std::int64_t rows = static_cast<std::int64_t>(w.size()) / a.columns;
    const Matrix b = matrix(adapted->weight(adapter_name(name, 'B')), rows), dw = matrix(merged->gradient(name), rows);
    for (const char which : {'A', 'B'}) {
      for (const float g : adapted->gradient(adapter_name(name, which))) {
        squares += static_cast<double>(g) * g;
      }
    }
    EXPECT_LT(test::relative_difference(adapted->gradient(adapter_name(name, 'A')),
                                        floats(product(scale, transposed(b), dw))),
              2e-4)
        << name;
    EXPECT_LT(test::relative_difference(adapted->gradient(adapter_name(name, 'B')),
                                        floats(product(scale, dw, transposed(a)))),
              2e-4)
        << name;
  }
  EXPECT_NEAR(here.grad_norm, std::sqrt(squares), 1e-4 * here.grad_norm) << "of A and B alone";
}

INSTANTIATE_TEST_SUITE_P(
    Models, WithAdapters,
    testing::Values(test::Model{"plain", {}}, test::Model{"micro_batches", {"batch.micro_batch=2"}},
                    test::Model{"recomputed", {"memory.recompute=\"full\""}},
                    test::Model{"shared_experts", {"moe.shared_experts=1", "moe.shared_gate=true"}},
                    test::Model{"few_kv_heads", {"model.kv_heads=2", "model.biases=true"}},
                    test::Model{"dense_gelu", {"moe.experts=0", "model.activation=\"gelu\""}}),
    [](const auto& made) { return made.param.name; });

// dA by differences of the loss: nothing of the code above.
TEST(Adapters, GradientIsTheSlopeOfTheLoss) {
  OneRank of(experiment(joined(adapters, {"moe.experts=0", "moe.aux_loss=0", "moe.z_loss=0"})));
  for (const std::string& name : of->names()) {
    if (name.ends_with(".lora_B.weight")) {
      draw_b(*of, name);
    }
  }
  for (const std::string name : {"model.layers.1.mlp.down_proj.lora_A.weight", "lm_head.lora_B.weight",
                                 "model.layers.0.self_attn.k_proj.lora_B.weight"}) {
    of->trainer().gradients(0);
    const std::vector<float> gradient = of->gradient(name), at = of->weight(name);
    double squares = 0;
    for (const float g : gradient) {
      squares += static_cast<double>(g) * g;
    }
    const double step = 1e-2 / std::sqrt(squares);
    const auto loss_at = [&](double sign) {
      std::vector<float> moved = at;
      for (std::size_t i = 0; i < moved.size(); ++i) {
        moved[i] += static_cast<float>(sign * step * gradient[i]);
      }
      of->set_weight(name, moved);
      return of->trainer().gradients(0).loss;
    };
    const double slope = (loss_at(1) - loss_at(-1)) / (2 * step);
    of->set_weight(name, at);
    EXPECT_NEAR(slope / squares, 1, 2e-2) << name;
  }
}

// Sixteen experts, a dozen tokens: some are never chosen.
TEST(Adapters, OfAnIdleExpertStayWithoutEffect) {
  const int experts = 16, steps = 4;
  OneRank of(experiment(joined(adapters, {"moe.experts=16", "moe.top_k=1", "batch.sequences=1", "moe.aux_loss=0"})));
  std::vector<std::int64_t> load(static_cast<std::size_t>(experts), 0);
  for (int step = 0; step < steps; ++step) {
    const StepReport report = of->trainer().step(step);
    EXPECT_TRUE(std::isfinite(report.loss) && std::isfinite(report.grad_norm));
    for (std::size_t e = 0; e < load.size(); ++e) {
      load[e] += report.layers.front().load[e];
    }
  }
  int idle = 0, chosen = 0;
  for (int e = 0; e < experts; ++e) {
    for (const char* w : {"w1", "w2", "w3"}) {
      const std::string name = fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}.weight", e, w);
      const std::vector<float> b = of->weight(adapter_name(name, 'B')), a = of->weight(adapter_name(name, 'A'));
      const bool zero = std::all_of(b.begin(), b.end(), [](float x) { return x == 0; });
      EXPECT_EQ(zero, load[static_cast<std::size_t>(e)] == 0) << name;
      EXPECT_TRUE(std::all_of(a.begin(), a.end(), [](float x) { return std::isfinite(x); }));
    }
    ++(load[static_cast<std::size_t>(e)] == 0 ? idle : chosen);
  }
  EXPECT_GT(idle, 0);
  EXPECT_GT(chosen, 0);
}

}  // namespace
}  // namespace orthant::train_adapters_test
