// bf16 weights without a master and optimizer states in 8 bits: whole steps against a plain loop in fp64 that rounds by
// the same random numbers, steps that are too small for bf16, and what is learned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/hash.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/support/experiment.h"
#include "tests/support/low_memory_oracle.h"
#include "tests/support/parity.h"

namespace orthant::low_memory_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;
namespace oracle = test::low_memory;

const Overrides no_master = {R"(run.dtype="bf16")", R"(optimizer.master_weights="none")"};
const Overrides in_8_bits = {R"(optimizer.state_dtype="8bit")"};
const Overrides wide = {"model.d_model=32", "model.d_ff=64"};

// Of one parameter, in fp64.
struct Reference {
  std::int64_t columns = 1;
  std::vector<double> x, m, v;
};

RandomKey key_of(const std::string& site, int step) {
  return {1, Purpose::rounding, hash32(site), static_cast<std::uint32_t>(step)};
}

// Rounds by blocks of 32 columns where a matrix has whole ones.
void store_state(std::vector<double>& values, const Reference& of, StateCode how, const std::string& site, int step) {
  if (of.columns % 32 != 0) {
    return;
  }
  for (std::size_t b = 0; b < values.size(); b += 32) {
    double most = 0;
    for (std::size_t i = b; i < b + 32; ++i) {
      most = std::max(most, std::abs(values[i]));
    }
    const auto exponent = static_cast<std::uint8_t>(oracle::exponent_of(most));
    for (std::size_t i = b; i < b + 32; ++i) {
      values[i] = oracle::by_chance(how, values[i], exponent, random_bits(key_of(site, step), i));
    }
  }
}

// Where a value lies so near to where the random number decides that fp32 decides otherwise: the share of such ones.
// The reference goes on from what was stored.
double share_of_others(const std::vector<float>& got, std::vector<double>& expected) {
  double others = 0, squares = 0;
  for (const double x : expected) {
    squares += x * x;
  }
  const double usual = std::sqrt(squares / static_cast<double>(expected.size()));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double found = static_cast<double>(got[i]);
    others += std::abs(found - expected[i]) > 1e-5 * std::abs(expected[i]) + 1e-6 * usual ? 1 : 0;
    expected[i] = found;
  }
  return others / static_cast<double>(got.size());
}

class LowMemorySteps : public testing::TestWithParam<const char*> {};

TEST_P(LowMemorySteps, AreTheDefinition) {
  const std::string optimizer = GetParam();
  OneRank rank(experiment(
      joined(joined(joined(no_master, in_8_bits), wide),
             {fmt::format("optimizer.name=\"{}\"", optimizer), "optimizer.lr=0.02", "optimizer.betas=[0.8, 0.95]",
              "optimizer.weight_decay=0.3", "optimizer.momentum=0.7", "optimizer.clip_grad_norm=0"})));
  std::map<std::string, Reference> all;
  for (const std::string& name : rank->names()) {
    Reference& of = all[name];
    const std::vector<float> x = rank->weight(name);
    of.x.assign(x.begin(), x.end());
    of.m.assign(x.size(), 0);
    of.v.assign(x.size(), 0);
    const Shape& global = rank->trainer().parameters().ref(name).param().spec.global;
    of.columns = global.rank() == 2 ? global[1] : 1;
    for (const double value : of.x) {
      ASSERT_EQ(value, oracle::bf16_below(value)) << "weights are those of bf16";
    }
  }
  double matrices = 0;
  for (int step = 0; step < 3; ++step) {
    rank->trainer().gradients(step);
    std::map<std::string, std::vector<float>> gradients;
    for (const auto& [name, ignored] : all) {
      gradients[name] = rank->gradient(name);
    }
    rank->trainer().apply(step);
    for (auto& [name, of] : all) {
      SCOPED_TRACE(fmt::format("step {} {}", step, name));
      const double decay = of.columns == 1 ? 0 : 0.3;
      for (std::size_t i = 0; i < of.x.size(); ++i) {
        const double g = static_cast<double>(gradients[name][i]);
        if (optimizer == "sgd") {
          of.m[i] = 0.7 * of.m[i] + g + decay * of.x[i];
          of.x[i] -= 0.02 * of.m[i];
        } else {
          of.m[i] = 0.8 * of.m[i] + 0.2 * g;
          of.v[i] = 0.95 * of.v[i] + 0.05 * g * g;
          const double m_hat = of.m[i] / (1 - std::pow(0.8, step + 1));
          const double v_hat = of.v[i] / (1 - std::pow(0.95, step + 1));
          of.x[i] -= 0.02 * (m_hat / (std::sqrt(v_hat) + 1e-5) + decay * of.x[i]);
        }
        const double f32 = static_cast<double>(static_cast<float>(of.x[i]));
        of.x[i] = oracle::bf16_by_chance(f32, random_bits(key_of(name, step), i));
      }
      store_state(of.m, of, StateCode::with_sign, "moment1/" + name, step);
      EXPECT_LE(share_of_others(rank->weight(name), of.x), 0.005);
      EXPECT_LE(share_of_others(rank->state("moment1", name), of.m), 0.001);
      if (optimizer == "adamw") {
        store_state(of.v, of, StateCode::positive, "moment2/" + name, step);
        EXPECT_LE(share_of_others(rank->state("moment2", name), of.v), 0.001);
      }
      matrices += of.columns % 32 == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(matrices, 10);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, LowMemorySteps, testing::Values("adamw", "sgd"),
                         [](const auto& made) { return std::string(made.param); });

// --- steps that are too small for bf16

struct Moved {
  double there = 0;   // how far along the way of the master weights, as a share of it
  double stayed = 0;  // share of the elements that have not changed
};

TEST(LowMemory, SmallStepsAddUp) {
  const Overrides slow = {R"(run.dtype="bf16")", "optimizer.lr=2e-6", "optimizer.weight_decay=0", "model.d_model=64"};
  constexpr int steps = 20;
  OneRank with(experiment(slow)), without(experiment(joined(slow, no_master)));
  const auto weights = [](OneRank& rank) {
    std::vector<float> all;
    for (const std::string& name : rank->names()) {
      const std::vector<float> one = rank->weight(name);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const std::vector<float> master_before = weights(with), before = weights(without);
  for (int step = 0; step < steps; ++step) {
    with->trainer().step(step);
    without->trainer().step(step);
  }
  const std::vector<float> master_after = weights(with), after = weights(without);
  double way = 0, along = 0, nearest_moved = 0, moved = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double far = static_cast<double>(master_after[i]) - static_cast<double>(master_before[i]);
    way += far * far;
    along += far * (static_cast<double>(after[i]) - static_cast<double>(before[i]));
    moved += after[i] != before[i] ? 1 : 0;
    // What a single step to the nearest number would do, for ever again: nothing.
    const double one_step = static_cast<double>(before[i]) + far / steps;
    nearest_moved +=
        std::abs(one_step - static_cast<double>(before[i])) > std::ldexp(std::abs(static_cast<double>(before[i])), -9)
            ? 1
            : 0;
  }
  const auto elements = static_cast<double>(after.size());
  EXPECT_LT(nearest_moved / elements, 0.01);
  EXPECT_GT(moved / elements, 0.02);
  EXPECT_NEAR(along / way, 1, 0.2) << "on average they go the way of master weights";
}

// --- a step that is not finite

TEST(LowMemory, AStepThatIsNotFiniteChangesNothing) {
  OneRank rank(experiment(joined(joined(no_master, in_8_bits), wide)));
  const auto numbers = [&] {
    std::map<std::string, std::vector<float>> all;
    for (const std::string& name : rank->names()) {
      all[name] = rank->weight(name);
      all["moment1/" + name] = rank->state("moment1", name);
      all["moment2/" + name] = rank->state("moment2", name);
    }
    return all;
  };
  rank->trainer().step(0);
  const ParamRef head = rank->trainer().parameters().ref("lm_head.weight");
  rank->stream().fill(head.group().master.slice(head.param().begin, {1}), std::nan(""));
  const auto before = numbers();
  EXPECT_THROW(rank->trainer().step(1), Error);
  test::expect_same_bits(numbers(), before);
}

// --- what is learned

double loss_after(const Overrides& overrides, int steps) {
  OneRank rank(experiment(joined(wide, overrides)));
  double last = 0;
  constexpr int averaged = 5;
  for (int step = 0; step < steps; ++step) {
    const double loss = rank->trainer().step(step).loss;
    last += step >= steps - averaged ? loss / averaged : 0;
  }
  return last;
}

TEST(LowMemory, LearnsAsMuch) {
  constexpr int steps = 60;
  const double first = loss_after({}, 5), full = loss_after({}, steps);
  ASSERT_LT(full, first - 0.3) << "there is something to learn";
  const double bf16 = loss_after({R"(run.dtype="bf16")"}, steps);
  EXPECT_NEAR(loss_after(in_8_bits, steps), full, 0.1 * (first - full));
  EXPECT_NEAR(loss_after(no_master, steps), bf16, 0.1 * (first - full));
  EXPECT_NEAR(loss_after(joined(no_master, in_8_bits), steps), bf16, 0.1 * (first - full));
}

// --- refusals

TEST(LowMemory, WhatCannotBeIsRefused) {
  EXPECT_THAT(test::refusal(joined(joined(in_8_bits, wide), {R"(optimizer.name="muon")"}), ""),
              testing::AllOf(testing::HasSubstr("wants whole matrices"), testing::HasSubstr("another optimizer")));
  EXPECT_THAT(test::refusal(joined(no_master, {R"(optimizer.name="muon")"}), ""),
              testing::HasSubstr("wants whole matrices"));
  EXPECT_THAT(test::refusal(in_8_bits, ""), testing::HasSubstr("nothing would be stored in 8 bits"));
  EXPECT_THAT(test::refusal(joined(in_8_bits, wide), "[plugins.tensor]\nsize = 2\n"),
              testing::AllOf(testing::HasSubstr("ranks split the columns of 'model."),
                             testing::HasSubstr("has 16 from column 0 on")));
  EXPECT_THAT(test::refusal(joined(in_8_bits, wide), "[plugins.offload]\nexpert_states = \"lazy\"\n"),
              testing::HasSubstr("write expert_states = \"eager\""));
  EXPECT_THAT(test::refusal(no_master, "[plugins.offload]\nexpert_states = \"lazy\"\n"),
              testing::HasSubstr("write expert_states = \"eager\""));
  EXPECT_THAT(test::refusal(joined(in_8_bits, joined(wide, {"model.biases=true", "model.kv_heads=1"})),
                            "[plugins.data]\nsize = 4\nzero = 1\n"),
              testing::HasSubstr("in the middle of a block"));
}

}  // namespace
}  // namespace orthant::low_memory_test
