// How a published model's router was trained is how training goes on from its import.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "router/gates.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/paths.h"

namespace orthant::import_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Random probabilities of a token's experts, [tokens][experts].
std::vector<std::vector<double>> probabilities(std::size_t tokens, std::size_t experts, std::uint32_t layer) {
  std::vector<std::vector<double>> p(tokens, std::vector<double>(experts));
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t e = 0; e < experts; ++e) {
      p[t][e] =
          std::exp(static_cast<double>(philox({3, Purpose::data_order, 0, layer}, t * experts + e).v[0]) * 0x1p-31);
    }
    const double sum = std::accumulate(p[t].begin(), p[t].end(), 0.0);
    std::for_each(p[t].begin(), p[t].end(), [&](double& x) { x /= sum; });
  }
  return p;
}

std::vector<std::size_t> choices(const std::vector<double>& p, std::size_t k) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  order.resize(k);
  return order;
}

// transformers: the mean over all tokens of one-hot choices, [k, E], times the mean of probabilities, summed, times E.
double theirs(const std::vector<std::vector<double>>& all_tokens, std::size_t k) {
  const std::size_t experts = all_tokens[0].size();
  std::vector<double> chosen(k * experts), mean(experts);
  const double each = 1 / static_cast<double>(all_tokens.size());
  for (const std::vector<double>& p : all_tokens) {
    const std::vector<std::size_t> taken = choices(p, k);
    for (std::size_t i = 0; i < k; ++i) {
      chosen[i * experts + taken[i]] += each;
    }
    for (std::size_t e = 0; e < experts; ++e) {
      mean[e] += p[e] * each;
    }
  }
  double sum = 0;
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t e = 0; e < experts; ++e) {
      sum += chosen[i * experts + e] * mean[e];
    }
  }
  return sum * static_cast<double>(experts);
}

// Ours of a layer (router/README.md): E sum_e f_e P_e, f the share of all choices.
double ours(const std::vector<std::vector<double>>& tokens, std::size_t k) {
  const std::size_t experts = tokens[0].size();
  double sum = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    double f = 0, p = 0;
    for (const std::vector<double>& token : tokens) {
      const std::vector<std::size_t> taken = choices(token, k);
      f += static_cast<double>(std::count(taken.begin(), taken.end(), e));
      p += token[e];
    }
    sum += f / static_cast<double>(tokens.size() * k) * p / static_cast<double>(tokens.size());
  }
  return sum * static_cast<double>(experts);
}

TEST(RouterTraining, TheirCoefficientTimesChoicesOverLayersIsOurs) {
  for (const std::size_t k : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
    const auto one = probabilities(40, 8, 0);
    EXPECT_NEAR(0.02 * theirs(one, k), 0.02 * static_cast<double>(k) / 1 * ours(one, k), 1e-12) << k;
    std::vector<std::vector<double>> layers = one;  // three layers that are alike
    layers.insert(layers.end(), one.begin(), one.end());
    layers.insert(layers.end(), one.begin(), one.end());
    EXPECT_NEAR(0.02 * theirs(layers, k), 0.02 * static_cast<double>(k) / 3 * (3 * ours(one, k)), 1e-12) << k;
  }
}

struct PublishedRouter {
  const char* model;
  double aux_loss;
};

// By hand from each config.json: coefficient * top_k / routed layers, in the last layers where the first are dense.
TEST(RouterTraining, ImportsHaveWhatWasPublished) {
  for (const auto& [model, aux_loss] :
       {PublishedRouter{"mixtral", 0.001 * 2 / 2}, PublishedRouter{"olmoe", 0.01 * 2 / 2},
        PublishedRouter{"qwen2_moe", 0.001 * 2 / 1}, PublishedRouter{"qwen3_moe", 0.001 * 2 / 1},
        PublishedRouter{"gpt_oss", 0.001 * 2 / 3}}) {
    Folder folder;
    import_into(folder / "run", paths::published_model(model));
    EXPECT_NEAR(config_of(folder / "run").settings.moe.aux_loss, aux_loss, 1e-11) << model;
  }
  for (const char* model : {"deepseek_v3", "glm4_moe", "dots1", "minimax_m2", "ernie4_5_moe"}) {
    Folder folder;
    import_into(folder / "run", paths::published_model(model));
    const MoeSettings moe = config_of(folder / "run").settings.moe;
    EXPECT_EQ(moe.aux_loss, 0) << model;
    EXPECT_EQ(read_keys<BiasKeys>(moe.own).bias_update_rate, 0) << model;
  }
}

TEST(RouterTraining, ARunSaysWhatItDoesOtherwise) {
  run_test::ProgramFolder folder;
  import_into(folder.path("base"), paths::published_model("mixtral"));
  folder.write("c.toml",
               "extends = [\"base/model.toml\"]\n[run]\nsteps = 1\n[train]\nfrom = \"base\"\n"
               "[data]\nsource = \"synthetic\"\nsequence_length = 16\n[batch]\nsequences = 2\n");
  const auto same = folder.orthant({"train", "c.toml"});
  ASSERT_EQ(same.code, 0) << same.error;
  EXPECT_THAT(same.output, Not(HasSubstr("trained otherwise")));
  const auto other = folder.orthant(run_test::with_set({"train", "c.toml"}, {"moe.aux_loss=0.01", "run.name=b"}));
  ASSERT_EQ(other.code, 0) << other.error;
  EXPECT_THAT(other.output, AllOf(HasSubstr("trained otherwise"), HasSubstr("moe.aux_loss = 0.01 (was 0.001)")));
}

}  // namespace
}  // namespace orthant::import_test
