// Cross-entropy: the loss against its definition, the gradient against its finite differences.
#include "tests/ops/oracle.h"

namespace orthant::test {
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

TEST(CrossEntropy, RefusesALabelOutsideTheVocabulary) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Tensor logits = c.poisoned(DType::f32, {1, 4}), loss = c.poisoned(DType::f32, {1});
  EXPECT_THROW(c.stream().cross_entropy(loss, logits, c.input(DType::i32, {1}, {4}).tensor, 1), Error);
}

}  // namespace
}  // namespace orthant::test
