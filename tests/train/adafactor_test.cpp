// Adafactor (examples/plugins/adafactor.cpp): plain loops in fp64 are held against transformers' numbers, and the
// plugin against the plain loops. And LAMB against its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/layers/parameter_state.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::adafactor_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;
using Numbers = std::vector<double>;

struct Keys {
  bool scaled = true;
  double decay = 0.8, clip = 1, beta1 = 0, weight_decay = 0, eps = 1e-15;
};

double root_mean_square(const Numbers& x) {
  double squares = 0;
  for (const double v : x) {
    squares += v * v;
  }
  return std::sqrt(squares / static_cast<double>(x.size()));
}

// One parameter; columns 0: of one dimension.
struct Reference {
  std::size_t columns = 0;
  Numbers x, row, column, second_moment, momentum;

  Reference(std::size_t columns_, Numbers weights) : columns(columns_), x(std::move(weights)) {
    row.assign(columns > 0 ? x.size() / columns : 0, 0);
    column.assign(columns, 0);
    second_moment.assign(x.size(), 0);
    momentum.assign(x.size(), 0);
  }

  // rate: before it is scaled by the weights.
  void step(const Numbers& g, int number, double rate, const Keys& keys) {
    const double beta2 = 1 - std::pow(number, -keys.decay);
    Numbers u(g.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < columns; ++j) {
        sum += g[i * columns + j] * g[i * columns + j] + keys.eps * keys.eps;
      }
      row[i] = beta2 * row[i] + (1 - beta2) * sum / static_cast<double>(columns);
    }
    double mean = 0;
    for (const double r : row) {
      mean += r / static_cast<double>(row.size());
    }
    for (std::size_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        sum += g[i * columns + j] * g[i * columns + j] + keys.eps * keys.eps;
      }
      column[j] = beta2 * column[j] + (1 - beta2) * sum / static_cast<double>(row.size());
    }
    for (std::size_t i = 0; i < g.size(); ++i) {
      second_moment[i] = beta2 * second_moment[i] + (1 - beta2) * (g[i] * g[i] + keys.eps * keys.eps);
      u[i] = g[i] / std::sqrt(columns > 0 ? row[i / columns] / mean * column[i % columns] : second_moment[i]);
    }
    const double scale = keys.scaled ? std::max(1e-3, root_mean_square(x)) : 1;
    const double share = 1 / std::max(1.0, root_mean_square(u) / keys.clip);
    for (std::size_t i = 0; i < g.size(); ++i) {
      double moved = rate * scale * share * u[i];
      if (keys.beta1 > 0) {
        momentum[i] = keys.beta1 * momentum[i] + (1 - keys.beta1) * moved;
        moved = momentum[i];
      }
      x[i] -= moved + keys.weight_decay * rate * scale * x[i];
    }
  }
};

double distance(const std::vector<float>& got, const Numbers& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got.at(i)) - expected[i];
    difference += d * d;
    norm += expected[i] * expected[i];
  }
  return got.size() != expected.size() ? INFINITY : std::sqrt(difference / norm);
}

Numbers wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

TEST(AdafactorReference, IsThatOfTransformers) {
  std::ifstream file(paths::source("tests/train/fixtures/adafactor.json"));
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 4u);
  for (const auto& one : cases) {
    const auto& arguments = one.at("arguments");
    const bool relative = arguments.at("relative_step").get<bool>();
    const Keys keys{.scaled = arguments.at("scale_parameter").get<bool>(),
                    .decay = -arguments.value("decay_rate", -0.8),
                    .clip = arguments.value("clip_threshold", 1.0),
                    .beta1 = arguments.value("beta1", 0.0),
                    .weight_decay = arguments.value("weight_decay", 0.0)};
    for (const auto& parameter : one.at("parameters")) {
      const auto& shape = parameter.at("shape");
      Reference of(shape.size() == 2 ? shape[1].get<std::size_t>() : 0, parameter.at("weight").get<Numbers>());
      for (const auto& step : parameter.at("steps")) {
        const int number = step.at("number").get<int>();
        const double rate = relative ? 0.01 * std::min(1.0, 100 / std::sqrt(number)) : arguments.at("lr").get<double>();
        of.step(step.at("gradient").get<Numbers>(), number, rate, keys);
        const auto expected = step.at("weight").get<Numbers>();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(of.x[i], expected[i], 1e-13) << one.at("name") << " step " << number;
        }
      }
    }
  }
}

std::string table(const std::string& name, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n{}", name, paths::out_of_tree(name), keys);
}

// The gradients of a step, clipped together.
std::map<std::string, Numbers> gradients_of(OneRank& rank, int step, double clip) {
  rank->trainer().gradients(step);
  std::map<std::string, Numbers> gradients;
  double squares = 0;
  for (const std::string& name : rank->names()) {
    Numbers& g = gradients[name] = wide(rank->gradient(name));
    for (const double v : g) {
      squares += v * v;
    }
  }
  for (auto& [name, g] : gradients) {
    for (double& v : g) {
      v *= std::min(1.0, clip / std::sqrt(squares));
    }
  }
  return gradients;
}

struct Case {
  const char* name;
  std::string keys;
  Keys expected;
  bool relative = true;
  Overrides overrides = {};
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}
class Adafactor : public testing::TestWithParam<Case> {};

// Wide, tall and square matrices, experts among them, norms and biases; the gradients are the trainer's own.
TEST_P(Adafactor, IsTheDefinition) {
  const Case& of = GetParam();
  const Overrides overrides = {R"(optimizer.name="adafactor")",
                               "optimizer.lr=0.02",
                               "optimizer.eps=1e-6",
                               "optimizer.weight_decay=0.3",
                               "model.biases=true",
                               "moe.every=2",
                               "model.kv_heads=2",
                               "model.d_ff=24",
                               "moe.d_expert=8",
                               "optimizer.clip_grad_norm=0.1",
                               "model.init_std=0.05",
                               "batch.micro_batch=2"};
  OneRank rank(experiment(joined(overrides, of.overrides), table("adafactor", of.keys)));
  std::map<std::string, Reference> all;
  for (const std::string& name : rank->names()) {
    const Shape& shape = rank->trainer().parameters().ref(name).param().spec.global;
    all.emplace(name, Reference(shape.rank() == 2 ? static_cast<std::size_t>(shape[1]) : 0, wide(rank->weight(name))));
  }
  for (int step = 0; step < 4; ++step) {
    const auto gradients = gradients_of(rank, step, 0.1);
    rank->trainer().apply(step);
    for (auto& [name, reference] : all) {
      SCOPED_TRACE(fmt::format("{} in step {}", name, step));
      const ParamSpec& spec = rank->trainer().parameters().ref(name).param().spec;
      Keys keys = of.expected;
      keys.eps = 1e-6;
      keys.weight_decay = spec.decay ? 0.3 : 0;
      reference.step(gradients.at(name), step + 1, 0.02 * spec.lr_scale, keys);
      EXPECT_LT(distance(rank->weight(name), reference.x), 2e-6);
      if (spec.global.rank() == 2) {
        EXPECT_LT(distance(rank->state("row", name), reference.row), 1e-6);
        EXPECT_LT(distance(rank->state("column", name), reference.column), 1e-6);
      } else {
        EXPECT_LT(distance(rank->state("second_moment", name), reference.second_moment), 1e-6);
      }
      if (keys.beta1 > 0) {
        EXPECT_LT(distance(rank->state("momentum", name), reference.momentum), 1e-5);
      }
    }
  }
}

const Case cases[] = {
    {"the_papers", "", {}},
    {"unscaled", "scale_parameter = false\nrelative_step = false\n", {.scaled = false}},
    {"clipped_with_momentum", "clip = 0.3\nbeta1 = 0.8\ndecay = 0.6\n", {.decay = 0.6, .clip = 0.3, .beta1 = 0.8}},
    {"guarded", "", {}, true, {R"(run.device="guarded")"}},
    {"rates_of_some",
     "",
     {},
     true,
     {R"(optimizer.lr_of=["*.experts.*"])", "optimizer.lr_scales=[3.0]", R"(optimizer.no_decay=["lm_head.*"])"}},
};
INSTANTIATE_TEST_SUITE_P(Of, Adafactor, testing::ValuesIn(cases), [](const auto& one) { return one.param.name; });

// A matrix keeps R + C + 1 numbers, a norm its elements.
TEST(AdafactorStates, AreRowsAndColumns) {
  OneRank rank(experiment({R"(optimizer.name="adafactor")"}, table("adafactor")));
  std::int64_t expected = 0, found = 0;
  for (const auto& group : rank->trainer().parameters().groups()) {
    for (const Param& p : group->params) {
      const Shape& shape = p.spec.global;
      expected += shape.rank() == 2 ? shape[0] + shape[1] + 1 : shape[0];
    }
    for (const ParamState& state : group->states) {
      found += state.values.elements();
    }
  }
  EXPECT_EQ(found, expected);
}

TEST(Adafactor, AnEpsWhoseSquareIsZeroIsRefused) {
  EXPECT_THAT(test::refusal({R"(optimizer.name="adafactor")", "optimizer.eps=1e-25"}, table("adafactor")),
              testing::HasSubstr("adafactor adds eps^2"));
}

TEST(Lamb, IsTheDefinition) {
  OneRank rank(experiment({R"(optimizer.name="lamb")", "optimizer.lr=0.02", "optimizer.eps=1e-6",
                           "optimizer.weight_decay=0.3", "optimizer.clip_grad_norm=0.1", "model.biases=true"},
                          table("lamb")));
  std::map<std::string, Numbers> x, m, v;
  for (const std::string& name : rank->names()) {
    x[name] = wide(rank->weight(name));
    m[name].assign(x[name].size(), 0);
  }
  v = m;
  for (int step = 0; step < 3; ++step) {
    const auto gradients = gradients_of(rank, step, 0.1);
    rank->trainer().apply(step);
    for (auto& [name, weights] : x) {
      const double decay = rank->trainer().parameters().ref(name).param().spec.decay ? 0.3 : 0;
      Numbers r(weights.size());
      for (std::size_t i = 0; i < r.size(); ++i) {
        const double g = gradients.at(name)[i];
        m[name][i] = 0.9 * m[name][i] + 0.1 * g;
        v[name][i] = 0.95 * v[name][i] + 0.05 * g * g;
        r[i] = m[name][i] / (1 - std::pow(0.9, step + 1)) /
                   (std::sqrt(v[name][i] / (1 - std::pow(0.95, step + 1))) + 1e-6) +
               decay * weights[i];
      }
      const double length = root_mean_square(weights), of_step = root_mean_square(r);
      const double trust = length > 0 && of_step > 0 ? length / of_step : 1;
      for (std::size_t i = 0; i < r.size(); ++i) {
        weights[i] -= 0.02 * trust * r[i];
      }
      EXPECT_LT(distance(rank->weight(name), weights), 1e-5) << name << " in step " << step;
    }
  }
}

}  // namespace
}  // namespace orthant::adafactor_test
