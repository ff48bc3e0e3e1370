// Convolutions and attention on a grid against their definitions in fp64, and their gradients against differences.
#include <gtest/gtest.h>

#include <cmath>

#include "plugins/images/convolution.h"
#include "plugins/images/grid_attention.h"
#include "tests/images/experiments.h"
#include "tests/support/op_harness.h"

namespace orthant::test::images_convolutions_test {
namespace {

using namespace images;
using namespace images_test;

// Rows of cells as an image [y][x], of one channel c of `channels`.
std::int64_t row_of(const Taps& taps, std::int64_t image, std::int64_t y, std::int64_t x, std::int64_t side) {
  const std::int64_t cell = (image * taps.grid + y / side) * taps.grid + x / side;
  return (cell * side + y % side) * side + x % side;
}

// By the definition: y[p, c] = sum over k of w[k, c] x[neighbour k of p, c].
Values convolved(const Taps& taps, std::int64_t channels, const Values& x, const Values& w) {
  const std::int64_t to_size = taps.grid * taps.to_side(), from_size = taps.grid * taps.from_side;
  Values y(static_cast<std::size_t>(taps.to_pixels() * channels), 0);
  for (std::int64_t image = 0; image < taps.images; ++image) {
    for (std::int64_t i = 0; i < to_size; ++i) {
      for (std::int64_t j = 0; j < to_size; ++j) {
        for (std::int64_t dy = -1; dy <= 1; ++dy) {
          for (std::int64_t dx = -1; dx <= 1; ++dx) {
            const std::int64_t from_y = taps.stride * i + dy, from_x = taps.stride * j + dx;
            if (from_y < 0 || from_y >= from_size || from_x < 0 || from_x >= from_size) {
              continue;
            }
            for (std::int64_t c = 0; c < channels; ++c) {
              y[static_cast<std::size_t>(row_of(taps, image, i, j, taps.to_side()) * channels + c)] +=
                  w[static_cast<std::size_t>((3 * (dy + 1) + dx + 1) * channels + c)] *
                  x[static_cast<std::size_t>(row_of(taps, image, from_y, from_x, taps.from_side) * channels + c)];
            }
          }
        }
      }
    }
  }
  return y;
}

using Forward = void (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Stream&);
using Backward = void (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          Stream&);

void check_depthwise(Forward forward, Backward backward) {
  for (const Taps& taps : {Taps{2, 3, 2, 1}, Taps{2, 3, 2, 2}, Taps{1, 2, 4, 2}, Taps{1, 4, 1, 1}}) {
    on_every_device([&](OpContext& c) {
      constexpr std::int64_t channels = 3;
      const Input x = c.normal(DType::f32, {taps.from_pixels(), channels}, 1),
                  w = c.normal(DType::f32, {9, channels}, 1);
      const Input dy = c.normal(DType::f32, {taps.to_pixels(), channels}, 1);
      const Tensor rows = neighbours(taps, c.stream());
      const Tensor y = c.poisoned(DType::f32, dy.tensor.shape()), dx = c.poisoned(DType::f32, x.tensor.shape());
      forward(y, x.tensor, w.tensor, rows, c.stream());
      c.expect("y", y, convolved(taps, channels, x.values, w.values), 1e-5);
      const Input before = c.constant(DType::f32, {9, channels}, 0.5);
      const Tensor dw = c.poisoned(DType::f32, {9, channels});
      c.stream().copy(dw, before.tensor);
      backward(dx, dw, dy.tensor, x.tensor, w.tensor, rows, c.stream());
      c.expect("dx", dx,
               numeric_gradient(
                   [&](const Values& v) { return inner(convolved(taps, channels, v, w.values), dy.values); }, x.values),
               1e-4);
      Values grown = numeric_gradient(
          [&](const Values& v) { return inner(convolved(taps, channels, x.values, v), dy.values); }, w.values);
      for (double& g : grown) {
        g += 0.5;
      }
      c.expect("dw", dw, grown, 1e-4);
    });
  }
}

TEST(Depthwise, OnTheHost) {
  check_depthwise(&depthwise, &depthwise_backward);
}
TEST(Depthwise, ByRows) {
  check_depthwise(&depthwise_by_rows, &depthwise_by_rows_backward);
}

TEST(Places, AreGatheredAndGivenBack) {
  on_every_device([](OpContext& c) {
    const Taps taps{2, 2, 2, 2};
    const Input x = c.normal(DType::f32, {taps.from_pixels(), 2}, 1);
    const Tensor rows = neighbours(taps, c.stream()), columns = c.poisoned(DType::f32, {taps.to_pixels(), 18});
    gather_places(columns, x.tensor, rows, c.stream());
    // With the matrix that picks place k of channel 1: a depthwise convolution of that place alone.
    const Values all = c.values_of(columns);
    for (std::int64_t k = 0; k < places; ++k) {
      Values w(18, 0);
      w[static_cast<std::size_t>(2 * k + 1)] = 1;
      const Values expected = convolved(taps, 2, x.values, w);
      for (std::size_t p = 0; p < static_cast<std::size_t>(taps.to_pixels()); ++p) {
        EXPECT_EQ(all[p * 18 + static_cast<std::size_t>(2 * k + 1)], expected[2 * p + 1]);
      }
    }
    const Input dcolumns = c.normal(DType::f32, {taps.to_pixels(), 18}, 1);
    const Tensor dx = c.poisoned(DType::f32, x.tensor.shape());
    c.stream().fill(dx, 0);
    gather_places_backward(dx, dcolumns.tensor, rows, c.stream());
    EXPECT_NEAR(inner(all, dcolumns.values), inner(x.values, c.values_of(dx)), 1e-4);  // the adjoint
  });
}

// Softmax(q k' scale + b) v of each head, in fp64.
Values attended(const GridShape& g, const Values& q, const Values& k, const Values& v, const Values& bias) {
  Values o(q.size(), 0);
  const auto at = [&](std::int64_t image, std::int64_t cell, std::int64_t head, std::int64_t e) {
    return static_cast<std::size_t>(((image * g.cells() + cell) * g.heads + head) * g.channels + e);
  };
  for (std::int64_t image = 0; image < g.images; ++image) {
    for (std::int64_t head = 0; head < g.heads; ++head) {
      for (std::int64_t i = 0; i < g.cells(); ++i) {
        std::vector<double> weight;
        double sum = 0;
        for (std::int64_t j = 0; j < g.cells(); ++j) {
          const std::int64_t dy = j / g.grid - i / g.grid, dx = j % g.grid - i % g.grid;
          double x =
              bias[static_cast<std::size_t>(((dy + g.grid - 1) * (2 * g.grid - 1) + dx + g.grid - 1) * g.heads + head)];
          for (std::int64_t e = 0; e < g.channels; ++e) {
            x += static_cast<double>(g.scale) * q[at(image, i, head, e)] * k[at(image, j, head, e)];
          }
          weight.push_back(std::exp(x));
          sum += weight.back();
        }
        for (std::int64_t j = 0; j < g.cells(); ++j) {
          for (std::int64_t e = 0; e < g.channels; ++e) {
            o[at(image, i, head, e)] += weight[static_cast<std::size_t>(j)] / sum * v[at(image, j, head, e)];
          }
        }
      }
    }
  }
  return o;
}

TEST(GridAttention, IsTheDefinitionAndItsGradient) {
  const GridShape g{.images = 2, .grid = 2, .heads = 2, .channels = 3, .scale = 0.6f};
  on_every_device([&](OpContext& c) {
    const Shape rows{g.images * g.cells(), g.heads * g.channels};
    const Input q = c.normal(DType::f32, rows, 1), k = c.normal(DType::f32, rows, 1), v = c.normal(DType::f32, rows, 1);
    const Input bias = c.normal(DType::f32, {g.offsets(), g.heads}, 1), d_o = c.normal(DType::f32, rows, 1);
    const Tensor o = c.poisoned(DType::f32, rows), lse = c.poisoned(DType::f32, {rows[0], g.heads});
    grid_attention(o, lse, q.tensor, k.tensor, v.tensor, bias.tensor, g, c.stream());
    c.expect("o", o, attended(g, q.values, k.values, v.values, bias.values), 1e-5);
    const Tensor dq = c.poisoned(DType::f32, rows), dk = c.poisoned(DType::f32, rows),
                 dv = c.poisoned(DType::f32, rows);
    const Tensor dbias = c.poisoned(DType::f32, bias.tensor.shape());
    c.stream().fill(dbias, 0);
    grid_attention_backward(dq, dk, dv, dbias, d_o.tensor, q.tensor, k.tensor, v.tensor, lse, bias.tensor, g,
                            c.stream());
    const auto slope = [&](const Values& x, const auto& f) {
      return numeric_gradient([&](const Values& moved) { return inner(f(moved), d_o.values); }, x);
    };
    c.expect("dq", dq,
             slope(q.values, [&](const Values& x) { return attended(g, x, k.values, v.values, bias.values); }), 1e-4);
    c.expect("dk", dk,
             slope(k.values, [&](const Values& x) { return attended(g, q.values, x, v.values, bias.values); }), 1e-4);
    c.expect("dv", dv,
             slope(v.values, [&](const Values& x) { return attended(g, q.values, k.values, x, bias.values); }), 1e-4);
    c.expect("dbias", dbias,
             slope(bias.values, [&](const Values& x) { return attended(g, q.values, k.values, v.values, x); }), 1e-4);
  });
}

// Of every parameter of a model: the steepest element, against the difference of the loss.
void expect_gradients(const Overrides& model) {
  OneRank rank(experiment(joined(model, {"model.init_std=0.3"}), plugin));
  rank->trainer().gradients(0);
  std::map<std::string, std::vector<float>> gradients;
  for (const std::string& name : rank->names()) {
    gradients[name] = rank->gradient(name);
  }
  for (const auto& [name, gradient] : gradients) {
    const auto steepest =
        std::max_element(gradient.begin(), gradient.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    const std::size_t at = static_cast<std::size_t>(steepest - gradient.begin());
    std::vector<float> weight = rank->weight(name);
    const float whole = weight[at], step = 2e-2f;
    const auto loss = [&](float moved) {
      weight[at] = whole + moved;
      rank->set_weight(name, weight);
      return rank->trainer().gradients(0).loss;
    };
    const double difference = (loss(step) - loss(-step)) / (2 * static_cast<double>(step));
    loss(0);
    const double expected = static_cast<double>(*steepest);
    EXPECT_NEAR(expected, difference, 0.02 * std::abs(difference) + 2e-5) << name;
    if (!name.ends_with("k_proj.bias")) {  // which moves all scores of a query alike
      EXPECT_GT(std::abs(expected), 1e-5) << name;
    }
  }
}

TEST(Gradients, OfAVit) {
  expect_gradients(dense);
}
TEST(Gradients, OfSoftExperts) {
  expect_gradients(soft);
}
TEST(Gradients, OfConvolutions) {
  expect_gradients(convolutions);
}

}  // namespace
}  // namespace orthant::test::images_convolutions_test
