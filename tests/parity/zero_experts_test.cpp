// Zero-computation experts against experts with weights that compute the same: an output matrix of zeros, or the
// identity as relu(x) - relu(-x). Loss, balance loss, and the gradients of all that both models have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/experiment.h"
#include "tests/support/parity.h"

namespace orthant::zero_experts_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;
using testing::HasSubstr;

constexpr std::int64_t d = 16, experts = 4, zero = 3;

Config config(const Overrides& with, const Overrides& more) {
  return experiment(test::joined({"model.activation=\"relu\"", fmt::format("moe.d_expert={}", 2 * d), "moe.top_k=2",
                                  "moe.aux_loss=0.5", "moe.z_loss=0.1", "moe.weight_scale=1.5"},
                                 test::joined(with, more)));
}

// [I; -I] and [I, -I], or zeros.
void make_zero_expert(OneRank& rank, const std::string& stem, bool copies) {
  std::vector<float> in(2 * d * d, 0), out(d * 2 * d, 0);
  for (std::int64_t i = 0; copies && i < d; ++i) {
    in[static_cast<std::size_t>(i * d + i)] = out[static_cast<std::size_t>(i * 2 * d + i)] = 1;
    in[static_cast<std::size_t>((d + i) * d + i)] = out[static_cast<std::size_t>(i * 2 * d + d + i)] = -1;
  }
  rank->set_weight(stem + ".w1.weight", in);
  rank->set_weight(stem + ".w2.weight", out);
}

class ZeroExperts : public testing::TestWithParam<test::Model> {};

TEST_P(ZeroExperts, ComputeWhatExpertsWithSuchWeightsWould) {
  for (const bool copies : {false, true}) {
    OneRank plain(config({fmt::format("moe.experts={}", experts + zero)}, GetParam().overrides));
    OneRank sparse(config({fmt::format("moe.experts={}", experts), fmt::format("moe.zero_experts={}", zero),
                           fmt::format("moe.zero_expert=\"{}\"", copies ? "copy" : "zero")},
                          GetParam().overrides));
    for (int block = 0; block < 2; ++block) {
      for (std::int64_t e = experts; e < experts + zero; ++e) {
        make_zero_expert(plain, fmt::format("model.layers.{}.block_sparse_moe.experts.{}", block, e), copies);
      }
    }
    const StepReport expected = plain->trainer().gradients(0), got = sparse->trainer().gradients(0);
    EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_NEAR(got.aux_loss, expected.aux_loss, 1e-6 * expected.aux_loss);
    EXPECT_NEAR(got.z_loss, expected.z_loss, 1e-6 * expected.z_loss);
    for (const std::string& name : sparse->names()) {
      EXPECT_LE(test::relative_difference(sparse->gradient(name), plain->gradient(name)), 1e-5) << name;
    }
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const LayerCounters& ours = got.layers[layer];
      std::vector<std::int64_t> load = expected.layers[layer].load;
      std::int64_t of_zero = 0;
      for (std::int64_t e = experts; e < experts + zero; ++e) {
        of_zero += load[static_cast<std::size_t>(e)];
      }
      load.resize(experts);
      EXPECT_EQ(ours.load, load);
      EXPECT_EQ(ours.zero_choices, of_zero);
      EXPECT_GT(of_zero, 0);
      EXPECT_EQ(ours.choices, expected.layers[layer].choices);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, ZeroExperts,
                         testing::Values(test::Model{"topk", {}},
                                         test::Model{"switch", {"moe.router=\"switch\"", "moe.top_k=1"}},
                                         test::Model{"gshard", {"moe.router=\"gshard\""}},
                                         test::Model{"bias", {"moe.router=\"bias\"", "moe.score=\"sigmoid\""}},
                                         test::Model{"batch", {"moe.balance_over=\"batch\""}}),
                         [](const auto& cell) { return cell.param.name; });

TEST(ZeroExpertsRefused, WhereTheyMakeNoSense) {
  EXPECT_THAT(test::refusal({"moe.zero_experts=2", "moe.router=\"expert_choice\"", "moe.capacity_factor=1.0"}, ""),
              HasSubstr("experts choose"));
  EXPECT_THAT(test::refusal({"moe.zero_expert=\"copy\""}, ""), HasSubstr("no zero-computation experts"));
  EXPECT_THAT(test::refusal({"moe.zero_experts=2", "moe.expert_groups=2"}, ""), HasSubstr("no group"));
  EXPECT_THAT(test::refusal({"moe.zero_experts=2", "run.record_routing=1"}, ""), HasSubstr("cannot be recorded"));
  EXPECT_THAT(test::refusal({"moe.zero_experts=2", "moe.top_k=7"}, ""), HasSubstr("7 of 6 experts"));
}

}  // namespace
}  // namespace orthant::zero_experts_test
