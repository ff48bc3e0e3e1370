// Muon against its definition in plain fp64 loops, and AdamW for what is no hidden matrix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/train/optimizer_step.h"
#include "tests/support/experiment.h"

namespace orthant::muon_test {
namespace {

using test::experiment;
using test::OneRank;

struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values = {};
  double& at(std::int64_t r, std::int64_t c) { return values[r * columns + c]; }
  double at(std::int64_t r, std::int64_t c) const { return values[r * columns + c]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, std::vector<double>(a.rows * b.columns, 0.0)};
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.columns; ++k) {
      for (std::int64_t j = 0; j < b.columns; ++j) {
        c.at(i, j) += a.at(i, k) * b.at(k, j);
      }
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, std::vector<double>(a.values.size())};
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) {
      t.at(j, i) = a.at(i, j);
    }
  }
  return t;
}

// Always from the left, whatever the shape: (a I + b A + c A^2) X with A = X X'.
Matrix orthogonalized(Matrix x) {
  double squares = 0;
  for (double value : x.values) {
    squares += value * value;
  }
  for (double& value : x.values) {
    value /= std::sqrt(squares) + 1e-7;
  }
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x)), square = product(gram, gram);
    Matrix polynomial = gram;
    for (std::size_t i = 0; i < gram.values.size(); ++i) {
      polynomial.values[i] = -4.7750 * gram.values[i] + 2.0315 * square.values[i];
    }
    for (std::int64_t i = 0; i < gram.rows; ++i) {
      polynomial.at(i, i) += 3.4445;
    }
    x = product(polynomial, x);
  }
  return x;
}

bool hidden(const std::string& name) {
  return name.find("_proj.weight") != std::string::npos || name.find(".experts.") != std::string::npos;
}

std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

double distance(const std::vector<float>& got, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    difference += d * d;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

// Wide, tall and square matrices, experts among them; three steps, the gradients are the trainer's own.
TEST(Muon, IsTheDefinition) {
  OneRank rank(experiment({R"(optimizer.name="muon")", "optimizer.lr=0.02", "optimizer.momentum=0.95",
                           "optimizer.weight_decay=0.3", "optimizer.clip_grad_norm=0.1", "moe.every=2",
                           "model.kv_heads=2", "model.d_ff=24", "moe.d_expert=8"}));
  std::map<std::string, std::vector<double>> x, m, v;
  std::map<std::string, Shape> shape;
  for (const auto& group : rank->trainer().parameters().groups()) {
    for (const Param& p : group->params) {
      shape[p.spec.name] = p.spec.global;
      x[p.spec.name] = wide(rank->weight(p.spec.name));
      m[p.spec.name].assign(x[p.spec.name].size(), 0);
    }
  }
  v = m;
  for (int step = 0; step < 3; ++step) {
    rank->trainer().gradients(step);
    std::map<std::string, std::vector<double>> gradients;
    double squares = 0;
    for (const auto& [name, ignored] : x) {
      gradients[name] = wide(rank->gradient(name));
      for (double g : gradients[name]) {
        squares += g * g;
      }
    }
    const double clip = std::min(1.0, 0.1 / std::sqrt(squares));
    rank->trainer().apply(step);
    int matrices = 0;
    for (auto& [name, weights] : x) {
      const bool is_norm = name.find("norm") != std::string::npos;
      if (hidden(name)) {
        ++matrices;
        Matrix u{shape[name][0], shape[name][1], m[name]};
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const double g = clip * gradients[name][i];
          m[name][i] = 0.95 * m[name][i] + g;
          u.values[i] = g + 0.95 * m[name][i];  // Nesterov
        }
        const Matrix o = orthogonalized(u);
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(o.rows, o.columns)));
        for (std::size_t i = 0; i < weights.size(); ++i) {
          weights[i] -= 0.02 * (scale * o.values[i] + 0.3 * weights[i]);
        }
        EXPECT_LT(distance(rank->state("momentum", name), m[name]), 1e-5) << name;
      } else {
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const double g = clip * gradients[name][i];
          m[name][i] = 0.9 * m[name][i] + 0.1 * g;
          v[name][i] = 0.95 * v[name][i] + 0.05 * g * g;
          const double m_hat = m[name][i] / (1 - std::pow(0.9, step + 1));
          const double v_hat = v[name][i] / (1 - std::pow(0.95, step + 1));
          weights[i] -= 0.02 * (m_hat / (std::sqrt(v_hat) + 1e-5) + (is_norm ? 0 : 0.3) * weights[i]);
        }
        EXPECT_LT(distance(rank->state("moment2", name), v[name]), 1e-5) << name;
      }
      EXPECT_LT(distance(rank->weight(name), weights), 1e-5) << name << " in step " << step;
    }
    EXPECT_EQ(matrices, 2 * 4 + 3 + 4 * 3) << "attention of two blocks, a dense FFN, four experts";
  }
}

// What is left of the momentum's singular values lies near 1, so the update's mean square is nearly that of its scale.
TEST(Muon, UpdatesHaveTheSizeOfAdams) {
  OneRank rank(experiment({R"(optimizer.name="muon")", "optimizer.lr=0.01", "optimizer.weight_decay=0"}));
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const std::vector<float> before = rank->weight(name);
  rank->trainer().step(0);
  const std::vector<float> after = rank->weight(name);
  double squares = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double moved = static_cast<double>(after[i]) - static_cast<double>(before[i]);
    squares += moved * moved;
  }
  const double rms = std::sqrt(squares / static_cast<double>(after.size()));
  EXPECT_GT(rms, 0.5 * 0.2 * 0.01);
  EXPECT_LT(rms, 1.3 * 0.2 * 0.01);
}

// The same numbers where what is 2-D lies beside what is not: state is kept for the elements that have it, no others.
TEST(Muon, KeepsOneNumberForEachElementOfAMatrix) {
  OneRank rank(experiment({R"(optimizer.name="muon")"}));
  std::int64_t hidden_elements = 0, others = 0, momentum = 0, moments = 0;
  for (const auto& group : rank->trainer().parameters().groups()) {
    for (const Param& p : group->params) {
      (hidden(p.spec.name) ? hidden_elements : others) += p.elements();
    }
    for (const ParamState& state : group->states) {
      (state.name == "momentum" ? momentum : moments) += state.values.elements();
    }
  }
  EXPECT_EQ(momentum, hidden_elements);
  EXPECT_EQ(moments, 2 * others);
}

}  // namespace
}  // namespace orthant::muon_test
