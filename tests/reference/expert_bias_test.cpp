// Experts with biases, forward and backward, against their definition in fp64: in fp32, and in bf16, where only what is
// kept between operations is rounded.
#include <gtest/gtest.h>

#include <algorithm>

#include "experts/experts.h"
#include "tests/reference/rig.h"
#include "tests/support/error_of.h"

namespace orthant::test::expert_bias_test {
namespace {

constexpr int tokens = 7, d = 8, f = 6, experts = 3, top_k = 2;
const std::string stem = "model.layers.0.block_sparse_moe";

using Matrix = std::vector<double>;

// Numbers that bf16 has, from -31/32 to 1.
Matrix numbers(std::size_t count, unsigned seed) {
  Matrix all;
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    all.push_back((static_cast<double>(seed >> 16 & 63u) - 31) / 32);
  }
  return all;
}

std::vector<float> as_floats(const Matrix& values) {
  return {values.begin(), values.end()};
}

struct Expert {
  Matrix w1, w2, w3, b1, b2, b3;  // [f, d], [d, f], [f, d], [f], [d], [f]
};

// silu and its derivative.
double silu(double x) {
  return x / (1 + std::exp(-x));
}
double slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

// What the layer should give: y = sum of weight * (w2 (silu(w1 x + b1) * (w3 x + b3)) + b2) over a token's choices.
struct Oracle {
  Matrix y = Matrix(tokens * d), dx = Matrix(tokens * d), dweight = Matrix(tokens * top_k);
  std::vector<Expert> gradient;

  Oracle(const std::vector<Expert>& w, const Matrix& x, const Matrix& dy, const std::vector<int>& expert,
         const Matrix& weight) {
    for (int e = 0; e < experts; ++e) {
      gradient.push_back({Matrix(f * d), Matrix(d * f), Matrix(f * d), Matrix(f), Matrix(d), Matrix(f)});
    }
    for (int c = 0; c < tokens * top_k; ++c) {
      const int e = expert[static_cast<std::size_t>(c)];
      if (e >= 0) {
        add(w[static_cast<std::size_t>(e)], gradient[static_cast<std::size_t>(e)], &x[at(c / top_k * d)],
            &dy[at(c / top_k * d)], weight[at(c)], c);
      }
    }
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  void add(const Expert& w, Expert& g, const double* xs, const double* dys, double weight, int choice) {
    Matrix gate = w.b1, up = w.b3, out = w.b2, a(f), da(f);
    for (int i = 0; i < f; ++i) {
      for (int j = 0; j < d; ++j) {
        gate[at(i)] += w.w1[at(i * d + j)] * xs[j];
        up[at(i)] += w.w3[at(i * d + j)] * xs[j];
      }
      a[at(i)] = silu(gate[at(i)]) * up[at(i)];
    }
    const int token = choice / top_k;
    for (int j = 0; j < d; ++j) {
      for (int i = 0; i < f; ++i) {
        out[at(j)] += w.w2[at(j * f + i)] * a[at(i)];
        da[at(i)] += w.w2[at(j * f + i)] * weight * dys[j];
        g.w2[at(j * f + i)] += weight * dys[j] * a[at(i)];
      }
      y[at(token * d + j)] += weight * out[at(j)];
      dweight[at(choice)] += dys[j] * out[at(j)];
      g.b2[at(j)] += weight * dys[j];
    }
    for (int i = 0; i < f; ++i) {
      const double dgate = da[at(i)] * up[at(i)] * slope(gate[at(i)]), dup = da[at(i)] * silu(gate[at(i)]);
      g.b1[at(i)] += dgate;
      g.b3[at(i)] += dup;
      for (int j = 0; j < d; ++j) {
        g.w1[at(i * d + j)] += dgate * xs[j];
        g.w3[at(i * d + j)] += dup * xs[j];
        dx[at(token * d + j)] += w.w1[at(i * d + j)] * dgate + w.w3[at(i * d + j)] * dup;
      }
    }
  }
};

Settings settings_of(ComputeType dtype) {
  Settings settings;
  settings.run.dtype = dtype;
  settings.data.sequence_length = tokens;
  settings.batch.sequences = 1;
  settings.model.layers = 1;
  settings.model.d_model = d;
  settings.model.heads = 2;
  settings.model.activation = Activation::swiglu;
  settings.moe.experts = experts;
  settings.moe.top_k = top_k;
  settings.moe.d_expert = f;
  settings.moe.expert_bias = true;
  return settings;
}

class ExpertBias : public testing::TestWithParam<ComputeType> {};

TEST_P(ExpertBias, IsItsDefinition) {
  const bool half = GetParam() == ComputeType::bf16;
  const Settings settings = settings_of(GetParam());
  Rank rank(settings);
  ParamStore store(rank.plan(), rank.stream());
  Stream& s = rank.stream();

  std::vector<Expert> w;
  const auto each = [](Expert& e) {
    return std::vector<std::pair<std::string, Matrix*>>{{"w1.weight", &e.w1}, {"w2.weight", &e.w2},
                                                        {"w3.weight", &e.w3}, {"w1.bias", &e.b1},
                                                        {"w2.bias", &e.b2},   {"w3.bias", &e.b3}};
  };
  unsigned seed = 1;
  for (int e = 0; e < experts; ++e) {
    w.push_back({Matrix(f * d), Matrix(d * f), Matrix(f * d), Matrix(f), Matrix(d), Matrix(f)});
    for (const auto& [name, values] : each(w.back())) {
      *values = numbers(values->size(), ++seed);
      rank.set(store, stem + ".experts." + std::to_string(e) + "." + name, as_floats(*values));
    }
  }
  for (ParamGroup* group : store.groups_of_layer(1)) {
    if (half) {
      s.cast(group->weight, group->master);
    }
    s.fill(group->grad, 0);
    group->grad_empty = false;
  }

  // The third expert has few rows, and two choices were dropped. Experts' rows lie one after another.
  const std::vector<int> expert = {0, 1, 1, 0, 2, 0, 0, -1, 1, 2, -1, 1, 0, 1};
  const Matrix weight = numbers(tokens * top_k, 50), x = numbers(tokens * d, 51), dy = numbers(tokens * d, 52);
  std::vector<std::int32_t> row(tokens * top_k, -1), source, offset = {0};
  for (int e = 0; e < experts; ++e) {
    for (std::size_t c = 0; c < expert.size(); ++c) {
      if (expert[c] == e) {
        row[c] = static_cast<std::int32_t>(source.size());
        source.push_back(static_cast<std::int32_t>(c));
      }
    }
    offset.push_back(static_cast<std::int32_t>(source.size()));
  }
  Routing routing;
  routing.dispatch.row = rank.upload(DType::i32, {tokens, top_k}, row);
  routing.dispatch.source = rank.upload(DType::i32, {static_cast<std::int64_t>(source.size()), 1}, source);
  routing.dispatch.offset = rank.upload(DType::i32, {experts + 1}, offset);
  routing.dispatch.weight = rank.upload(DType::f32, {tokens, top_k}, as_floats(weight));

  const auto put = [&](const Matrix& values) {
    const Tensor wide = rank.upload(DType::f32, {tokens, d}, as_floats(values));
    if (!half) {
      return wide;
    }
    const Tensor narrow = rank.device().empty(DType::bf16, wide.shape());
    s.cast(narrow, wide);
    return narrow;
  };
  const auto get = [&](const Tensor& t) {
    const Tensor wide = rank.device().empty(DType::f32, t.shape());
    s.cast(wide, t);
    return rank.floats(wide);
  };
  const std::vector<std::int32_t> none(tokens, 0);
  const DeviceBatch batch = rank.batch(1, tokens, none, none);
  StepSums sums = rank.sums();
  const StepContext ctx{.plan = rank.plan(), .stream = s, .batch = batch, .sums = sums};
  const Experts layer(store, stem, rank.plan(), 1);
  Saved saved;
  const std::vector<float> y = get(layer.forward(ctx, put(x), routing, saved));
  const Experts::Gradients back = layer.backward(ctx, put(dy), routing, saved);

  Oracle expected(w, x, dy, expert, weight);
  const double rounding = half ? 1e-2 : 1e-6;
  EXPECT_LE(difference(y, as_floats(expected.y)), rounding);
  EXPECT_LE(difference(get(back.n), as_floats(expected.dx)), rounding);
  EXPECT_LE(difference(rank.floats(back.weight), as_floats(expected.dweight)), rounding);
  for (int e = 0; e < experts; ++e) {
    for (const auto& [name, values] : each(expected.gradient[static_cast<std::size_t>(e)])) {
      // Weights and dy are numbers of bf16, so that nothing is rounded on the way to the second bias.
      const double allowed = name == "w2.bias" ? 1e-6 : rounding;
      const std::string full = stem + ".experts." + std::to_string(e) + "." + name;
      EXPECT_LE(difference(rank.gradient(store, full), as_floats(*values)), allowed) << full;
    }
  }
}

TEST(ExpertBiases, RefuseSizesThatAreNotTheirs) {
  const Settings settings = settings_of(ComputeType::fp32);
  Rank rank(settings);
  const ParamStore store(rank.plan(), rank.stream());
  const std::vector<ParamGroup*> groups = store.groups_of_layer(1);
  const auto routed = std::find_if(groups.begin(), groups.end(), [](const ParamGroup* g) { return g->experts; });
  const std::vector<std::int32_t> none(tokens, 0);
  const DeviceBatch batch = rank.batch(1, tokens, none, none);
  StepSums sums = rank.sums();
  const StepContext ctx{.plan = rank.plan(), .stream = rank.stream(), .batch = batch, .sums = sums};
  const Tensor offset = rank.upload(DType::i32, {experts + 1}, std::vector<std::int32_t>(experts + 1, 0));
  const Tensor nothing = rank.device().empty(DType::f32, {0, d});
  std::vector<Param> weights = (*routed)->params;
  const ExpertBiases narrow(store, weights, experts, f);
  EXPECT_NE(error_of([&] {
              narrow.add_in(ctx, nothing, offset, {0, experts});
            }).find("first biases"),
            std::string::npos);
  weights.front().size[1] = d + 1;
  const ExpertBiases wide(store, weights, experts, 2 * f);
  EXPECT_NE(error_of([&] {
              wide.add_out(ctx, nothing, offset, {0, experts});
            }).find("second biases"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(In, ExpertBias, testing::Values(ComputeType::fp32, ComputeType::bf16),
                         [](const auto& type) { return type.param == ComputeType::fp32 ? "fp32" : "bf16"; });

}  // namespace
}  // namespace orthant::test::expert_bias_test
