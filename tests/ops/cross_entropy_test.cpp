// Cross-entropy: the loss against its definition, the gradient against its finite differences.
#include <algorithm>

#include "tests/ops/oracle.h"

namespace orthant::test::cross_entropy_test {
namespace {

TEST(CrossEntropy, LossAndGradient) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Shape& shape : {Shape{0, 5}, Shape{1, 1}, Shape{4, 3}, Shape{9, 67}, Shape{64, 130}}) {
        const std::int64_t rows = shape[0], v = shape[1];
        const std::string name = fmt::format("{} {}", name_of(dtype), shape.to_string());
        const Input logits = c.normal(dtype, shape, 4);
        Values labels = c.integers(DType::i32, {rows}, 0, v).values;
        if (rows > 2) {
          labels[1] = -1;
        }
        const Input label = c.input(DType::i32, {rows}, labels);
        const Tensor loss = c.poisoned(DType::f32, {rows});
        Values losses(static_cast<std::size_t>(rows), 0.0), gradient(logits.values.size(), 0.0);
        for (std::int64_t t = 0; t < rows; ++t) {
          if (oracle::at(labels, t) < 0) {
            continue;
          }
          const auto chosen = static_cast<std::int64_t>(oracle::at(labels, t));
          const Values row(logits.values.begin() + t * v, logits.values.begin() + (t + 1) * v);
          oracle::at(losses, t) = oracle::cross_entropy(row.data(), v, chosen);
          const Values slope =
              numeric_gradient([&](const Values& x) { return 0.25 * oracle::cross_entropy(x.data(), v, chosen); }, row);
          std::copy(slope.begin(), slope.end(), gradient.begin() + t * v);
        }
        c.stream().cross_entropy(loss, logits.tensor, label.tensor, 0.25f);
        c.expect("loss " + name, loss, losses, 1e-6);
        c.expect("gradient " + name, logits.tensor, gradient, dtype == DType::f32 ? 2e-6 : 0.004);
      }
    }
  });
}

// Rows that a device keeps near, and rows too wide for that; of an odd width too.
TEST(CrossEntropy, WideRows) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t v : {4096, 30001, 120000}) {
        const Input logits = c.normal(dtype, {2, v}, 4);
        const Values labels{static_cast<double>(v - 1), 5};
        const Tensor loss = c.poisoned(DType::f32, {2});
        Values losses, gradient;
        for (std::int64_t t = 0; t < 2; ++t) {
          const double* row = logits.values.data() + t * v;
          const auto chosen = static_cast<std::int64_t>(oracle::at(labels, t));
          losses.push_back(oracle::cross_entropy(row, v, chosen));
          const double all = losses.back() + row[chosen];  // log of the sum of exponentials
          for (std::int64_t j = 0; j < v; ++j) {
            gradient.push_back(0.25 * (std::exp(row[j] - all) - (j == chosen)));
          }
        }
        c.stream().cross_entropy(loss, logits.tensor, c.input(DType::i32, {2}, labels).tensor, 0.25f);
        const std::string name = fmt::format("{} {}", name_of(dtype), v);
        c.expect("loss " + name, loss, losses, 1e-6);
        c.expect("gradient " + name, logits.tensor, gradient, dtype == DType::f32 ? 2e-5 : 0.004);
      }
    }
  });
}

TEST(CrossEntropy, LargeLogitsAndNaN) {
  on_every_device([](OpContext& c) {
    const Input logits = c.input(DType::f32, {3, 3}, {1e4, -1e4, 0, 500, 500, 500, 0, std::nan(""), 0});
    const Input label = c.input(DType::i32, {3}, {0, 1, 0});
    const Tensor loss = c.poisoned(DType::f32, {3});
    c.stream().cross_entropy(loss, logits.tensor, label.tensor, 1.0f);
    const double nan = std::nan(""), third = 1.0 / 3;
    c.expect("loss", loss, {0, std::log(3.0), nan}, 1e-6);
    c.expect("gradient", logits.tensor, {0, 0, 0, third, third - 1, third, nan, nan, nan}, 1e-6);
  });
}

// The rows cut into slices of columns, as ranks hold them: loss and gradient against the definition.
struct Sliced {
  Tensor loss;
  std::vector<Tensor> logits;
  std::vector<std::int64_t> cuts;
};

Sliced run_sliced(OpContext& c, DType dtype, const Values& whole, std::int64_t rows, const Tensor& label,
                  const std::vector<std::int64_t>& cuts, float scale) {
  const auto slices = static_cast<std::int64_t>(cuts.size()) - 1;
  const std::int64_t v = cuts.back();
  Sliced out{c.poisoned(DType::f32, {rows}), {}, cuts};
  const Tensor all = c.poisoned(DType::f32, {slices, rows, 3});
  for (std::int64_t s = 0; s < slices; ++s) {
    const auto at = static_cast<std::size_t>(s);
    Values part;
    for (std::int64_t t = 0; t < rows; ++t) {
      part.insert(part.end(), whole.begin() + t * v + cuts[at], whole.begin() + t * v + cuts[at + 1]);
    }
    out.logits.push_back(c.input(dtype, {rows, cuts[at + 1] - cuts[at]}, part).tensor);
    const Tensor stats = c.poisoned(DType::f32, {rows, 3});
    c.stream().cross_entropy_stats(stats, out.logits.back(), label, cuts[at]);
    const RowRun run{0, s, 1};
    c.stream().copy_rows(all, stats.view({1, rows, 3}), {&run, 1});
  }
  for (std::size_t s = 0; s < out.logits.size(); ++s) {
    c.stream().cross_entropy_from_stats(out.loss, out.logits[s], label, all, cuts[s], scale);
  }
  return out;
}

void expect_sliced(OpContext& c, const std::string& name, const Sliced& got, const Values& loss, const Values& gradient,
                   double tolerance) {
  c.expect("loss " + name, got.loss, loss, 1e-6);
  const std::int64_t v = got.cuts.back(), rows = static_cast<std::int64_t>(loss.size());
  Values joined(gradient.size());
  for (std::size_t s = 0; s < got.logits.size(); ++s) {
    const Values part = c.values_of(got.logits[s]);
    const std::int64_t width = got.cuts[s + 1] - got.cuts[s];
    for (std::int64_t i = 0; i < rows * width; ++i) {
      oracle::at(joined, i / width * v + got.cuts[s] + i % width) = oracle::at(part, i);
    }
  }
  c.expect("gradient " + name, c.input(DType::f64, {rows, v}, joined).tensor, gradient, tolerance);
}

TEST(CrossEntropy, SlicesOfTheVocabulary) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::vector<std::int64_t>& cuts :
           std::vector<std::vector<std::int64_t>>{{0, 67}, {0, 30, 67}, {0, 1, 1, 40, 41, 67}, {0, 17, 34, 51, 67}}) {
        const std::int64_t rows = 9, v = 67;
        const Input logits = c.normal(dtype, {rows, v}, 4);
        Values labels = c.integers(DType::i32, {rows}, 0, v).values;
        labels[1] = -1;
        labels[2] = 0;
        labels[3] = 66;
        const Input label = c.input(DType::i32, {rows}, labels);
        Values losses(rows, 0.0), gradient(logits.values.size(), 0.0);
        for (std::int64_t t = 0; t < rows; ++t) {
          if (t == 1) {
            continue;
          }
          const double* row = logits.values.data() + t * v;
          const auto chosen = static_cast<std::int64_t>(oracle::at(labels, t));
          oracle::at(losses, t) = oracle::cross_entropy(row, v, chosen);
          for (std::int64_t j = 0; j < v; ++j) {
            // softmax(row)[j] = exp(-cross entropy of label j)
            oracle::at(gradient, t * v + j) = 0.25 * (std::exp(-oracle::cross_entropy(row, v, j)) - (j == chosen));
          }
        }
        const Sliced got = run_sliced(c, dtype, logits.values, rows, label.tensor, cuts, 0.25f);
        expect_sliced(c, fmt::format("{} {}", name_of(dtype), cuts.size()), got, losses, gradient,
                      dtype == DType::f32 ? 2e-6 : 0.004);
      }
    }
  });
}

// One slice gives the bits of the whole rows' operation; extreme and missing logits give what that gives.
TEST(CrossEntropy, SlicesWithLargeLogitsAndNaN) {
  on_every_device([](OpContext& c) {
    const double nan = std::nan(""), minus = -std::numeric_limits<double>::infinity();
    const Values logits{80,    -80,   -1e30, -1e30,  // a slice far below the other
                        -1e30, -1e30, 80,    79,     // and far above
                        -1e4,  1e4,   500,   500,    //
                        minus, minus, 1,     2,      // a slice of minus infinities
                        0,     0,     nan,   0,      //
                        -1e30, -1e30, -1e30, -1e30};
    const Input label = c.input(DType::i32, {6}, {0, 3, 2, 3, 0, 1});
    const Tensor loss = c.poisoned(DType::f32, {6});
    const Input whole = c.input(DType::f32, {6, 4}, logits);
    c.stream().cross_entropy(loss, whole.tensor, label.tensor, 0.5f);
    const Values losses = c.values_of(loss), gradient = c.values_of(whole.tensor);
    const std::vector<std::vector<std::int64_t>> all_cuts{{0, 4}, {0, 2, 4}, {0, 1, 2, 3, 4}};
    for (const std::vector<std::int64_t>& cuts : all_cuts) {
      const Sliced got = run_sliced(c, DType::f32, logits, 6, label.tensor, cuts, 0.5f);
      expect_sliced(c, fmt::format("cut in {}", cuts.size() - 1), got, losses, gradient, 1e-6);
    }
    EXPECT_NEAR(losses[1], std::log1p(std::exp(1.0)), 1e-6);
    EXPECT_NEAR(losses[5], std::log(4.0), 1e-6);
    EXPECT_TRUE(std::isnan(losses[4]));
  });
}

TEST(CrossEntropy, SlicesShowALabelThatNoneHolds) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Input label = c.input(DType::i32, {1}, {4});
  const Sliced got = run_sliced(c, DType::f32, {1, 2, 3, 4}, 1, label.tensor, {0, 2, 4}, 1);
  EXPECT_EQ(c.values_of(got.loss)[0], std::numeric_limits<double>::infinity());
  const Tensor stats = c.poisoned(DType::f32, {1, 3});
  EXPECT_THROW(c.stream().cross_entropy_stats(stats, got.logits[0], label.tensor, -1), Error);
  EXPECT_THROW(c.stream().cross_entropy_from_stats(got.loss, got.logits[0], label.tensor, stats, 0, 1), Error);
}

TEST(CrossEntropy, RefusesALabelOutsideTheVocabulary) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Tensor logits = c.poisoned(DType::f32, {1, 4}), loss = c.poisoned(DType::f32, {1});
  EXPECT_THROW(c.stream().cross_entropy(loss, logits, c.input(DType::i32, {1}, {4}).tensor, 1), Error);
}

}  // namespace
}  // namespace orthant::test::cross_entropy_test
