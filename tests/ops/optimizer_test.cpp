// Optimizers: several steps against the textbook recurrences in fp64.
#include "tests/ops/oracle.h"

namespace orthant::test::optimizer_test {
namespace {

constexpr double factor_value = 0.5;

// One parameter through `steps` steps of AdamW with the bias-corrected moments of the paper's algorithm 2.
double adamw_oracle(double p, const Values& gradients, double lr, double b1, double b2, double eps, double decay) {
  double m = 0, v = 0, step = 0;
  for (const double raw : gradients) {
    const double g = raw * factor_value;
    step += 1;
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    const double m_hat = m / (1 - std::pow(b1, step)), v_hat = v / (1 - std::pow(b2, step));
    p = p - lr * (m_hat / (std::sqrt(v_hat) + eps) + decay * p);
  }
  return p;
}

TEST(Optimizer, AdamW) {
  on_every_device([](OpContext& c) {
    for (const std::int64_t n : {0, 1, 37, 40000}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::string name = fmt::format("{} {}", n, name_of(dtype));
        const Input p = c.normal(DType::f32, {n}, 1), factor = c.input(DType::f32, {1}, {factor_value});
        const Input m = c.constant(DType::f32, {n}, 0), v = c.constant(DType::f32, {n}, 0);
        const Tensor weight = dtype == DType::f32 ? p.tensor : c.poisoned(dtype, {n});
        std::vector<Input> grads;
        for (int step = 1; step <= 3; ++step) {
          grads.push_back(c.normal(DType::f32, {n}, 0.1));
          c.stream().adamw(p.tensor, weight, m.tensor, v.tensor, grads.back().tensor, factor.tensor,
                           {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, static_cast<float>(1 - std::pow(0.9, step)),
                            static_cast<float>(1 - std::pow(0.95, step))});
        }
        Values expected = p.values;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] = adamw_oracle(expected[i], {grads[0].values[i], grads[1].values[i], grads[2].values[i]}, 0.01,
                                     0.9, 0.95, 1e-8, 0.1);
        }
        c.expect("master " + name, p.tensor, expected, 1e-6);
        c.expect("weight " + name, weight, expected, dtype == DType::f32 ? 1e-6 : 0.004);
        c.same_bits("m " + name, m.tensor);
        c.same_bits("v " + name, v.tensor);
      }
    }
  });
}

TEST(Optimizer, Sgd) {
  on_every_device([](OpContext& c) {
    const std::int64_t n = 37;
    const Input p = c.normal(DType::f32, {n}, 1), m = c.constant(DType::f32, {n}, 0);
    const Input factor = c.input(DType::f32, {1}, {factor_value});
    const Tensor weight = c.poisoned(DType::bf16, {n});
    Values expected = p.values, velocity(p.values.size(), 0.0);
    for (int step = 0; step < 3; ++step) {
      const Input g = c.normal(DType::f32, {n}, 1);
      c.stream().sgd(p.tensor, weight, m.tensor, g.tensor, factor.tensor, {0.1f, 0.9f, 0.01f});
      for (std::size_t i = 0; i < expected.size(); ++i) {
        velocity[i] = 0.9 * velocity[i] + g.values[i] * factor_value + 0.01 * expected[i];
        expected[i] -= 0.1 * velocity[i];
      }
    }
    c.expect("master", p.tensor, expected, 1e-6);
    c.expect("weight", weight, expected, 0.004);
  });
}

TEST(Optimizer, Descend) {
  on_every_device([](OpContext& c) {
    for (const std::int64_t n : {0, 1, 37, 40000}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::string name = fmt::format("{} {}", n, name_of(dtype));
        const Input p = c.normal(DType::f32, {n}, 1), u = c.normal(DType::f32, {n}, 1);
        const Input finite = c.input(DType::f32, {1}, {1});
        const Tensor weight = dtype == DType::f32 ? p.tensor : c.poisoned(dtype, {n});
        c.stream().descend(p.tensor, weight, u.tensor, finite.tensor, 0.1f, 0.3f);
        Values expected = p.values;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] -= 0.1 * (u.values[i] + 0.3 * expected[i]);
        }
        c.expect("master " + name, p.tensor, expected, 1e-6);
        c.expect("weight " + name, weight, expected, dtype == DType::f32 ? 1e-6 : 0.004);
      }
    }
  });
}

TEST(Optimizer, Normalize) {
  on_every_device([](OpContext& c) {
    for (const std::int64_t n : {0, 1, 37, 40000}) {
      for (const double squares : {0.0, 1e-8, 16.0, 1e30}) {
        const Input x = c.normal(DType::f32, {n}, 1);
        c.stream().normalize(x.tensor, c.input(DType::f64, {1}, {squares}).tensor, 0.5f);
        Values expected = x.values;
        for (double& value : expected) {
          value /= std::sqrt(squares) + 0.5;
        }
        c.expect(fmt::format("{} {}", n, squares), x.tensor, expected, 1e-6);
      }
    }
  });
}

TEST(Optimizer, NothingChangesWhereTheFactorIsNaN) {
  on_every_device([](OpContext& c) {
    const Input p = c.normal(DType::f32, {9}, 1), m = c.normal(DType::f32, {9}, 1);
    const Input v = c.constant(DType::f32, {9}, 1), g = c.normal(DType::f32, {9}, 1);
    const Input factor = c.input(DType::f32, {1}, {std::nan("")});
    c.stream().adamw(p.tensor, p.tensor, m.tensor, v.tensor, g.tensor, factor.tensor,
                     {0.1f, 0.9f, 0.9f, 1e-8f, 0.1f, 0.1f, 0.1f});
    c.stream().sgd(p.tensor, p.tensor, m.tensor, g.tensor, factor.tensor, {0.1f, 0.9f, 0.1f});
    c.stream().descend(p.tensor, p.tensor, g.tensor, factor.tensor, 0.1f, 0.1f);
    c.expect("p", p.tensor, p.values, 0);
    c.expect("m", m.tensor, m.values, 0);
    c.expect("v", v.tensor, v.values, 0);
  });
}

TEST(Optimizer, ClipFactor) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  on_every_device([&](OpContext& c) {
    const auto check = [&](double squares, float max_norm, double expected, double loss = 3) {
      const Tensor factor = c.poisoned(DType::f32, {1});
      c.stream().clip_factor(factor, c.input(DType::f64, {1}, {squares}).tensor,
                             c.input(DType::f64, {1}, {loss}).tensor, max_norm);
      c.expect(fmt::format("{} {} {}", squares, max_norm, loss), factor, {expected}, 1e-7);
    };
    check(16, 1, 0.25);
    check(16, 8, 1);
    check(16, 0, 1);
    check(0, 1, 1);
    check(infinity, 1, nan);
    check(nan, 1, nan);
    check(nan, 0, nan);
    check(16, 1, nan, nan);
    check(16, 0, nan, infinity);
  });
}

}  // namespace
}  // namespace orthant::test::optimizer_test
