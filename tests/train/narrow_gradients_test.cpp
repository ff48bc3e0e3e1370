// Gradients in bf16 (optimizer.gradient_dtype): what is rounded, and when, against sums that are rounded here; and what
// the optimizer makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/layers/parameter_state.h"
#include "tests/support/experiment.h"
#include "tests/support/parity.h"

namespace orthant::narrow_gradients_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;

const Overrides narrow = {R"(optimizer.gradient_dtype="bf16")"};

// The sequences of another source, from one of them on.
class From final : public BatchSource {
 public:
  From(const BatchSource& of, std::int64_t first) : of_(of), first_(first) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    return of_.train(step, first_ + first, count);
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return of_.validation(first, count); }
  std::int64_t validation_sequences() const override { return of_.validation_sequences(); }
  std::int64_t vocabulary() const override { return of_.vocabulary(); }

 private:
  const BatchSource& of_;
  std::int64_t first_;
};

using Gradients = std::map<std::string, std::vector<float>>;

Gradients gradients_of(OneRank& rank) {
  rank->trainer().gradients(0);
  Gradients all;
  for (const std::string& name : rank->names()) {
    all[name] = rank->gradient(name);
  }
  return all;
}

// To eight bits, ties to even.
float nearest_bf16(float value) {
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(value), &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
}

// The scale of a step's losses is 1 / tokens, so one sequence of four has a gradient of exactly four times its part.
void expect_sums_of_four(const Overrides& model) {
  const Overrides all = joined(model, {"batch.micro_batch=1"});
  const auto source = make_batch_source(experiment(joined(all, {"batch.sequences=4"})).settings);
  Gradients expected;
  for (std::int64_t m = 0; m < 4; ++m) {
    const From one(*source, m);
    OneRank alone(experiment(joined(all, {"batch.sequences=1"})), &one);
    for (const auto& [name, gradient] : gradients_of(alone)) {
      std::vector<float>& sum = expected[name];
      sum.resize(gradient.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = nearest_bf16(sum[i] + gradient[i] / 4);
      }
    }
  }
  OneRank rank(experiment(joined(joined(all, narrow), {"batch.sequences=4"})), source.get());
  const Gradients found = gradients_of(rank);
  test::expect_same_bits(found, expected);
}

TEST(NarrowGradients, AreRoundedOnceForEachMicroBatch) {
  expect_sums_of_four({});
  expect_sums_of_four({"model.biases=true", "moe.shared_experts=1", R"(model.positions="learned")", "moe.every=2",
                       R"(memory.recompute="full")"});
  expect_sums_of_four({R"(run.dtype="bf16")"});
}

// The norm is that of the numbers that are kept.
TEST(NarrowGradients, HaveTheirNorm) {
  OneRank rank(experiment(joined(narrow, {"batch.micro_batch=2"})));
  const double told = rank->trainer().gradients(0).grad_norm;
  double squares = 0;
  for (const std::string& name : rank->names()) {
    for (const float g : rank->gradient(name)) {
      squares += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  EXPECT_NEAR(told, std::sqrt(squares), 1e-9 * told);
}

// What is kept in bf16 are numbers of f32 too: the same ones, kept in f32, must give the same step in every bit.
class Updates : public testing::TestWithParam<test::Model> {};

TEST_P(Updates, AreThoseOfTheSameNumbersInF32) {
  const Overrides how = joined(GetParam().overrides, {"optimizer.clip_grad_norm=0"});
  OneRank rank(experiment(joined(how, narrow))), other(experiment(how));
  for (int step = 0; step < 2; ++step) {
    rank->trainer().gradients(step);
    other->trainer().gradients(step);
    for (const auto& group : other->trainer().parameters().groups()) {
      for (const Param& p : group->params) {
        const std::vector<float> g = rank->gradient(p.spec.name);
        other->stream().upload(group->grad.slice(p.begin, {p.elements()}), g.data());
      }
    }
    rank->trainer().apply(step);
    other->trainer().apply(step);
    for (const std::string& name : rank->names()) {
      EXPECT_TRUE(test::same_bits(rank->weight(name), other->weight(name))) << "step " << step << " " << name;
    }
  }
}

const test::Model optimizers[] = {
    {"adamw", {}},
    {"sgd", {R"(optimizer.name="sgd")"}},
    {"muon", {R"(optimizer.name="muon")"}},
    {"low_memory",
     {R"(run.dtype="bf16")", R"(optimizer.master_weights="none")", R"(optimizer.state_dtype="8bit")",
      "model.d_model=32"}},
};
INSTANTIATE_TEST_SUITE_P(NarrowGradients, Updates, testing::ValuesIn(optimizers),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace orthant::narrow_gradients_test
