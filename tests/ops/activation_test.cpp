// FFN activations, the embedding, and the exponential behind them.
#include "core/device/cpu/vector_math.h"
#include "tests/ops/oracle.h"

namespace orthant::test::activation_test {
namespace {

const Activation kinds[] = {Activation::relu,           Activation::gelu,  Activation::swiglu,
                            Activation::clamped_swiglu, Activation::geglu, Activation::tanh};

// Inputs, of which some are beyond where the clamped activation is cut off, and none where it has no slope.
Input inputs(OpContext& c, DType dtype, const Shape& shape, double spread, Activation kind) {
  if (kind != Activation::clamped_swiglu) {
    return c.normal(dtype, shape, spread);
  }
  Values values = c.normal(dtype, shape, 5).values;
  for (double& x : values) {
    x = std::abs(std::abs(x) - 7) < 0.1 ? 6.5 : x;
  }
  return c.input(dtype, shape, values);
}

TEST(Activation, Forward) {
  on_every_device([](OpContext& c) {
    for (const Activation kind : kinds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const Shape& shape : {Shape{0, 4}, Shape{1, 1}, Shape{1, 13}, Shape{5, 13}, Shape{300, 65}}) {
          const std::int64_t f = shape[1], n = is_gated(kind) ? 2 * f : f;
          const Input h = inputs(c, dtype, {shape[0], n}, 3, kind);
          const Tensor a = c.poisoned(dtype, shape);
          c.stream().activation(a, h.tensor, kind);
          c.expect(fmt::format("{} {} {}", static_cast<int>(kind), name_of(dtype), shape.to_string()), a,
                   oracle::activation(h.values, shape[0], f, kind), dtype == DType::f32 ? 5e-6 : 0.004);
        }
      }
    }
  });
}

TEST(Activation, Backward) {
  on_every_device([](OpContext& c) {
    for (const Activation kind : kinds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const Shape& shape : {Shape{0, 4}, Shape{1, 1}, Shape{1, 13}, Shape{3, 13}, Shape{4, 20}}) {
          const std::int64_t f = shape[1], n = is_gated(kind) ? 2 * f : f;
          const Input h = inputs(c, dtype, {shape[0], n}, 2, kind), da = c.normal(dtype, shape, 1);
          const Tensor dh = c.poisoned(dtype, {shape[0], n});
          c.stream().activation_backward(dh, da.tensor, h.tensor, kind);
          const Values expected = numeric_gradient(
              [&](const Values& x) { return inner(da.values, oracle::activation(x, shape[0], f, kind)); }, h.values);
          c.expect(fmt::format("{} {} {}", static_cast<int>(kind), name_of(dtype), shape.to_string()), dh, expected,
                   dtype == DType::f32 ? 2e-6 : 0.004);
        }
      }
    }
  });
}

// With s = weight of the row's choice: dh is the gradient of <da, s act(h)> by h, dweight that by s, a is s act(h).
TEST(Activation, WeightedBackward) {
  on_every_device([](OpContext& c) {
    for (const Activation kind : kinds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const std::int64_t f : {1, 13, 64, 200}) {
          const std::int64_t rows = 5, n = is_gated(kind) ? 2 * f : f;
          const Values source = {3, -1, 0, 5, -1};  // choices 1, 2 and 4 of [3, 2] have no row
          const Input h = inputs(c, dtype, {rows, n}, 2, kind), da = c.normal(dtype, {rows, f}, 1);
          const Input weight = c.normal(DType::f32, {3, 2}, 1);
          const Tensor dh = c.poisoned(dtype, {rows, n}), a = c.poisoned(dtype, {rows, f});
          const Tensor dweight = c.poisoned(DType::f32, {3, 2});
          c.stream().weighted_activation_backward(dh, a, dweight, da.tensor, h.tensor, weight.tensor,
                                                  c.input(DType::i32, {rows, 1}, source).tensor, kind);
          Values scale, want_a = oracle::activation(h.values, rows, f, kind), want_dweight(6, 0.0);
          for (std::size_t r = 0; r < source.size(); ++r) {
            scale.push_back(source[r] < 0 ? 0 : weight.values[source[r]]);
            for (std::size_t j = 0; j < static_cast<std::size_t>(f); ++j) {
              double& v = want_a[r * static_cast<std::size_t>(f) + j];
              if (source[r] >= 0) {
                want_dweight[source[r]] += v * da.values[r * static_cast<std::size_t>(f) + j];
              }
              v *= scale[r];
            }
          }
          // The same with each row's weight beside it: what rows without a choice have is 0.
          const Tensor dh2 = c.poisoned(dtype, {rows, n}), a2 = c.poisoned(dtype, {rows, f});
          const Tensor dweight2 = c.poisoned(DType::f32, {rows, 1});
          c.stream().weighted_activation_backward(dh2, a2, dweight2, da.tensor, h.tensor,
                                                  c.input(DType::f32, {rows, 1}, scale).tensor, {}, kind);
          EXPECT_EQ(c.values_of(dh2), c.values_of(dh));
          EXPECT_EQ(c.values_of(a2), c.values_of(a));
          for (const std::size_t r : {0, 2, 3}) {
            EXPECT_EQ(c.values_of(dweight2)[r], c.values_of(dweight)[source[r]]);
          }
          const Values want_dh = numeric_gradient(
              [&](const Values& x) {
                Values act = oracle::activation(x, rows, f, kind);
                for (std::size_t i = 0; i < act.size(); ++i) {
                  act[i] *= scale[i / static_cast<std::size_t>(f)];
                }
                return inner(da.values, act);
              },
              h.values);
          const std::string name = fmt::format("{} {} {}", static_cast<int>(kind), name_of(dtype), f);
          c.expect("a " + name, a, want_a, dtype == DType::f32 ? 5e-6 : 0.004);
          c.expect("dh " + name, dh, want_dh, dtype == DType::f32 ? 5e-6 : 0.004);
          c.expect("dweight " + name, dweight, want_dweight, 5e-6);
        }
      }
    }
  });
}

TEST(Activation, FarInputsAndNaN) {
  on_every_device([](OpContext& c) {
    for (const Activation kind : {Activation::relu, Activation::gelu}) {
      const Input h = c.input(DType::f32, {1, 4}, {-200, 200, std::nan(""), 0});
      const Tensor a = c.poisoned(DType::f32, {1, 4});
      c.stream().activation(a, h.tensor, kind);
      c.expect(fmt::format("{}", static_cast<int>(kind)), a, {0, 200, std::nan(""), 0}, 1e-6);
    }
    const Input x = c.input(DType::f32, {1, 4}, {-200, 200, std::nan(""), 0});
    const Tensor y = c.poisoned(DType::f32, {1, 4});
    c.stream().activation(y, x.tensor, Activation::tanh);
    c.expect("tanh", y, {-1, 1, std::nan(""), 0}, 1e-6);
    const Input h = c.input(DType::f32, {1, 12}, {-200, 200, 1, std::nan(""), 0, 200, 3, 100, -100, 2, 9, -8});
    const Tensor a = c.poisoned(DType::f32, {1, 6});
    c.stream().activation(a, h.tensor, Activation::clamped_swiglu);
    const double seven = 7 / (1 + std::exp(-1.702 * 7)), one = 1 / (1 + std::exp(-1.702));
    c.expect("clamped", a, {0, 8 * seven, -6 * one, std::nan(""), 0, -6 * seven}, 1e-6);
  });
}

TEST(VectorMath, ExponentialIsAccurate) {
  for (double x = -86.8; x < 88.7; x += 0.0137) {
    const auto f = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(f));
    ASSERT_NEAR(static_cast<double>(fast_exp(f)) / exact, 1.0, 2.5e-7) << x;
  }
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-1000.0f), 0.0f);
  EXPECT_EQ(fast_exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(fast_exp(1000.0f), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(fast_exp(std::nanf(""))));
}

TEST(Embedding, ForwardAndBackward) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Shape& shape : {Shape{0, 4}, Shape{1, 1}, Shape{1, 13}, Shape{40, 13}, Shape{200, 130}}) {
        const std::int64_t rows = shape[0], d = shape[1], vocabulary = 7;
        const std::string name = fmt::format("{} {}", name_of(dtype), shape.to_string());
        const Input table = c.normal(dtype, {vocabulary, d}, 1), id = c.integers(DType::i32, {rows}, 0, vocabulary);
        const Input before = c.normal(dtype, shape, 1), dy = c.normal(dtype, shape, 1);
        const Input dtable = c.normal(DType::f32, {vocabulary, d}, 1);
        const Tensor y = c.poisoned(dtype, shape);
        Values looked_up(before.values.size()), sum = before.values, grads = dtable.values;
        for (std::int64_t t = 0; t < rows; ++t) {
          for (std::int64_t j = 0; j < d; ++j) {
            const auto from = static_cast<std::int64_t>(oracle::at(id.values, t)) * d + j;
            oracle::at(looked_up, t * d + j) = oracle::at(table.values, from);
            oracle::at(sum, t * d + j) += oracle::at(table.values, from);
            oracle::at(grads, from) += oracle::at(dy.values, t * d + j);
          }
        }
        c.stream().embedding(y, table.tensor, id.tensor, false);
        c.expect("y " + name, y, looked_up, 0);
        c.stream().embedding(before.tensor, table.tensor, id.tensor, true);
        c.expect("y += " + name, before.tensor, sum, dtype == DType::f32 ? 5e-6 : 0.004);
        c.stream().embedding_backward(dtable.tensor, dy.tensor, id.tensor);
        c.expect("dtable " + name, dtable.tensor, grads, 2e-6);
      }
    }
  });
}

// The whole table cut into slices (one of them empty): the slices' results add up to the whole's.
TEST(Embedding, SlicesOfTheTable) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::int64_t rows = 40, d = 5, cuts[] = {0, 3, 3, 10, 11};
      const Input table = c.normal(dtype, {11, d}, 1), id = c.integers(DType::i32, {rows}, 0, 11);
      const Input dy = c.normal(dtype, {rows, d}, 1), before = c.normal(dtype, {rows, d}, 1);
      for (int s = 0; s < 4; ++s) {
        const std::string name = fmt::format("{} {}", name_of(dtype), s);
        const std::int64_t begin = cuts[s], end = cuts[s + 1];
        const Input part =
            c.input(dtype, {end - begin, d}, Values(table.values.begin() + begin * d, table.values.begin() + end * d));
        const Input dpart = c.constant(DType::f32, {end - begin, d}, 1), sum = c.input(dtype, {rows, d}, before.values);
        const Tensor y = c.poisoned(dtype, {rows, d});
        Values expected(static_cast<std::size_t>(rows * d), 0.0), added = before.values, grads = dpart.values;
        for (std::int64_t i = 0; i < rows * d; ++i) {
          const auto row = static_cast<std::int64_t>(oracle::at(id.values, i / d));
          if (begin <= row && row < end) {
            oracle::at(expected, i) = oracle::at(table.values, row * d + i % d);
            oracle::at(added, i) += oracle::at(expected, i);
            oracle::at(grads, (row - begin) * d + i % d) += oracle::at(dy.values, i);
          }
        }
        c.stream().embedding(y, part.tensor, id.tensor, false, begin);
        c.expect("y " + name, y, expected, 0);
        c.stream().embedding(sum.tensor, part.tensor, id.tensor, true, begin);
        c.expect("y += " + name, sum.tensor, added, dtype == DType::f32 ? 5e-6 : 0.004);
        c.stream().embedding_backward(dpart.tensor, dy.tensor, id.tensor, begin);
        c.expect("dtable " + name, dpart.tensor, grads, 2e-6);
      }
    }
  });
}

// More tokens and rows than one block of a device takes, and one id that half of the tokens have.
TEST(Embedding, BackwardOfManyTokens) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t d : {8, 5}) {
        const std::int64_t tokens = 2500, rows = 1500, first_row = 20;
        Values ids = c.integers(DType::i32, {tokens}, 0, 1600).values;
        for (std::size_t t = 0; t < ids.size(); t += 2) {
          ids[t] = 777;
        }
        const Input dy = c.normal(dtype, {tokens, d}, 1), table = c.normal(DType::f32, {rows, d}, 1);
        Values expected = table.values;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const auto row = static_cast<std::int64_t>(ids[t]) - first_row;
          for (std::int64_t j = 0; j < d && row >= 0 && row < rows; ++j) {
            oracle::at(expected, row * d + j) += oracle::at(dy.values, t * d + j);
          }
        }
        c.stream().embedding_backward(table.tensor, dy.tensor, c.input(DType::i32, {tokens}, ids).tensor, first_row);
        c.expect(fmt::format("{} {}", name_of(dtype), d), table.tensor, expected, 1e-5);
      }
    }
  });
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Input table = c.normal(DType::f32, {3, 2}, 1);
  const Tensor y = c.poisoned(DType::f32, {1, 2});
  for (const double bad : {-1.0, 3.0}) {
    EXPECT_THROW(c.stream().embedding(y, table.tensor, c.input(DType::i32, {1}, {bad}).tensor, false), Error);
    EXPECT_THROW(c.stream().embedding_backward(table.tensor, y, c.input(DType::i32, {1}, {bad}).tensor), Error);
  }
  EXPECT_THROW(c.stream().embedding(y, table.tensor, c.input(DType::i32, {1}, {-1}).tensor, false, 0), Error);
  EXPECT_THROW(c.stream().embedding(y, table.tensor, c.input(DType::i32, {1}, {1}).tensor, false, -2), Error);
}

}  // namespace
}  // namespace orthant::test::activation_test
