// The objective of images, and the weights of soft experts, against their definitions in fp64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/objective.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/layers/layer.h"
#include "core/train/micro_batches.h"
#include "plugins/images/soft_experts.h"
#include "tests/images/experiments.h"
#include "tests/support/op_harness.h"

namespace orthant::test::images_classes_test {
namespace {

using namespace images_test;

constexpr std::int64_t classes = 8;

// Rows of logits that are given; what is learned is kept.
class Rows final : public OutputRows {
 public:
  Rows(Stream& s, const Tensor& logits)
      : s_(s), logits_(logits), learned_(s.device().empty(DType::f32, logits.shape())) {}
  std::int64_t tokens() const override { return logits_.dim(0); }
  std::int64_t chunk() const override { return 5; }  // no image's
  std::int64_t first_column() const override { return 0; }
  Tensor logits(std::int64_t begin, std::int64_t rows) override {
    Tensor copy = s_.device().empty(DType::f32, {rows, logits_.dim(1)});
    s_.copy(copy, logits_.rows(begin, rows));
    return copy;
  }
  void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) override {
    s_.cross_entropy(loss, logits, label, scale);
  }
  void sum_over_columns(const Tensor&) override {}
  void sum_over_sequences(const Tensor&) override {}
  void learn(std::int64_t begin, const Tensor& dlogits) override {
    EXPECT_EQ(begin, rows_);
    rows_ += dlogits.dim(0);
    s_.copy(learned_.rows(begin, dlogits.dim(0)), dlogits);
  }
  Values learned() const {
    std::vector<float> values(static_cast<std::size_t>(learned_.elements()));
    s_.download(values.data(), learned_);
    return {values.begin(), values.end()};
  }

 private:
  Stream& s_;
  Tensor logits_, learned_;
  std::int64_t rows_ = 0;
};

struct Found {
  double loss = 0, top1 = 0, top5 = 0;
  Values gradient;
};

// By the definition. share: of each token of an image in its logits.
Found defined(const Values& logits, const std::vector<double>& share, const std::vector<std::int32_t>& label,
              double smoothing, double scale) {
  Found found;
  found.gradient.assign(logits.size(), 0);
  const std::size_t n = share.size(), v = classes;
  for (std::size_t i = 0; i < label.size(); ++i) {
    std::vector<double> pooled(v, 0);
    for (std::size_t t = 0; t < n; ++t) {
      for (std::size_t c = 0; c < v; ++c) {
        pooled[c] += share[t] * logits[(i * n + t) * v + c];
      }
    }
    if (label[i] < 0) {
      continue;
    }
    double sum = 0;
    for (const double x : pooled) {
      sum += std::exp(x);
    }
    const std::size_t own = static_cast<std::size_t>(label[i]);
    for (std::size_t c = 0; c < v; ++c) {
      const double wanted = (c == own ? 1 - smoothing : 0) + smoothing / classes;
      found.loss -= wanted * (pooled[c] - std::log(sum));
      for (std::size_t t = 0; t < n; ++t) {
        found.gradient[(i * n + t) * v + c] = scale * share[t] * (std::exp(pooled[c]) / sum - wanted);
      }
    }
    const auto before = std::count_if(pooled.begin(), pooled.end(), [&](double x) { return x > pooled[own]; });
    found.top1 += before < 1 ? 1 : 0;
    found.top5 += before < 5 ? 1 : 0;
  }
  return found;
}

void expect_definition(const Overrides& model, double smoothing, bool training) {
  OneRank rank(
      experiment(joined(model, {"moe.experts=0", fmt::format("train.label_smoothing={}", smoothing)}), plugin));
  Plan& plan = rank->session().plan();
  Stream& s = rank->stream();
  const Objective& objective = objective_of(plan.settings());
  HostBatch batch = make_batch_source(plan.settings())->train(0, 0, 8);
  pad_to(batch, 9, plan.spaces());  // an image of padding
  const std::shared_ptr<const ObjectiveBatch> own = objective.upload(batch, plan, s);
  const std::int64_t tokens = 9 * batch.positions;
  Values values;
  std::vector<float> host;
  for (std::int64_t i = 0; i < tokens * classes; ++i) {
    host.push_back(3 * normal(RandomKey{5}, static_cast<std::uint64_t>(i)));
  }
  values.assign(host.begin(), host.end());
  const Tensor logits = s.device().empty(DType::f32, {tokens, classes});
  s.upload(logits, host.data());
  Rows rows(s, logits);
  const Tensor sums = s.device().empty(DType::f64, {3});
  s.fill(sums, 0);
  const DeviceBatch on_device = upload(batch, plan, s);
  StepSums step_sums;
  const float scale = 1.0f / 8;
  const StepContext ctx{
      .plan = plan, .stream = s, .batch = on_device, .sums = step_sums, .training = training, .loss_scale = scale};
  objective.run({.own = own.get(), .counts = {}, .sums = sums}, rows, ctx);
  std::vector<double> got(3);
  s.download(got.data(), sums);
  std::vector<std::int32_t> label;
  for (std::size_t i = 0; i < 9; ++i) {
    label.push_back(batch.label[i * static_cast<std::size_t>(batch.positions)]);
  }
  EXPECT_EQ(label.back(), -1);
  std::vector<double> share(static_cast<std::size_t>(batch.positions), 1.0 / static_cast<double>(batch.positions));
  if (model == dense) {
    share.assign(share.size(), 0);
    share.front() = 1;
  }
  const Found expected = defined(values, share, label, training ? smoothing : 0, static_cast<double>(scale));
  EXPECT_NEAR(got[0], expected.loss, 1e-5 * expected.loss);
  EXPECT_EQ(got[1], expected.top1);
  EXPECT_EQ(got[2], expected.top5);
  EXPECT_GT(got[2], got[1]);
  if (training) {
    const Values learned = rows.learned();
    for (std::size_t i = 0; i < learned.size(); ++i) {
      EXPECT_NEAR(learned[i], expected.gradient[i], 1e-6) << i;
    }
  }
}

TEST(Classes, OfAClassToken) {
  expect_definition(dense, 0.1, true);
}
TEST(Classes, OfAMean) {
  expect_definition(of_mean, 0.3, true);
}
TEST(Classes, AreMeasuredWithoutSmoothing) {
  expect_definition(of_mean, 0.3, false);
}

// Two images of three tokens, four slots.
TEST(SoftWeights, AreSoftmaxesOverTokensAndSlots) {
  on_every_device([](OpContext& c) {
    constexpr std::int64_t images = 2, m = 3, slots = 4;
    const Input logits = c.normal(DType::f32, {images * m, slots}, 1.5);
    const Input da = c.normal(DType::f32, {images * m, slots}, 1), db = c.normal(DType::f32, {images * m, slots}, 1);
    const auto weights = [&](const Values& l) {
      Values both(2 * l.size());
      for (std::size_t t = 0; t < images * m; ++t) {
        for (std::size_t q = 0; q < slots; ++q) {
          double of_tokens = 0, of_slots = 0;
          for (std::size_t u = t / m * m; u < t / m * m + m; ++u) {
            of_tokens += std::exp(l[u * slots + q]);
          }
          for (std::size_t r = 0; r < slots; ++r) {
            of_slots += std::exp(l[t * slots + r]);
          }
          both[t * slots + q] = std::exp(l[t * slots + q]) / of_tokens;
          both[l.size() + t * slots + q] = std::exp(l[t * slots + q]) / of_slots;
        }
      }
      return both;
    };
    const Tensor dispatch = c.poisoned(DType::f32, {images * m, slots});
    const Tensor combine = c.poisoned(DType::f32, {images * m, slots});
    images::soft_weights(dispatch, combine, logits.tensor, m, c.stream());
    const Values both = weights(logits.values);
    const auto half = static_cast<std::ptrdiff_t>(logits.values.size());
    c.expect("dispatch", dispatch, Values(both.begin(), both.begin() + half), 1e-6);
    c.expect("combine", combine, Values(both.begin() + half, both.end()), 1e-6);
    const Tensor dlogits = c.poisoned(DType::f32, {images * m, slots});
    images::soft_weights_backward(dlogits, da.tensor, db.tensor, dispatch, combine, m, c.stream());
    Values d = da.values;
    d.insert(d.end(), db.values.begin(), db.values.end());
    c.expect("dlogits", dlogits, numeric_gradient([&](const Values& l) { return inner(weights(l), d); }, logits.values),
             1e-4);
  });
}

}  // namespace
}  // namespace orthant::test::images_classes_test
