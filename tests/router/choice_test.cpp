// choose_experts, gate_choices and balance_bias against their definitions in fp64, choice by choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/router/problems.h"
#include "tests/support/error_of.h"

namespace orthant::test::choice_test {
namespace {

Problem grouped(Problem q, std::int64_t groups, std::int64_t of_token) {
  q.config.expert_groups = groups;
  q.config.groups_per_token = of_token;
  return q;
}

Problem by_best(Problem q) {
  q.config.group_score = GroupScore::max;
  return q;
}

std::vector<Problem> choice_problems() {
  return {
      problem(Kind::topk, 8, 2, 3, 20, 4),
      grouped(problem(Kind::topk, 8, 2, 3, 20, 4), 4, 2),
      grouped(by_sigmoid(problem(Kind::topk, 8, 3, 2, 17, 5)), 4, 2),
      grouped(by_sigmoid(problem(Kind::topk, 256, 8, 1, 66, 6)), 8, 4),  // as DeepSeek-V3
      grouped(problem(Kind::topk, 160, 6, 1, 9), 8, 3),
      grouped(problem(Kind::topk, 64, 6, 1, 9), 64, 7),  // groups of one expert
      grouped(problem(Kind::topk, 6, 6, 1, 9), 3, 3),    // every group, every expert
      by_sigmoid(problem(Kind::topk, 1030, 8, 1, 70, 3)),
      by_best(grouped(problem(Kind::topk, 160, 6, 1, 20), 8, 3)),  // as DeepSeek-V2
      by_best(grouped(by_sigmoid(problem(Kind::topk, 8, 2, 3, 20, 4)), 4, 2)),
      problem(Kind::topk, 4, 2, 2, 4, 1),  // padding only
      problem(Kind::topk, 4, 2, 0, 4),     // no token
  };
}

// The experts in the order of falling value, of equal ones the lower first.
std::vector<std::size_t> by_value(const Values& value) {
  std::vector<std::size_t> order(value.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return value[a] > value[b]; });
  return order;
}

// The K experts of one token, by the definition.
Values chosen_by(const Values& logits, const Values& bias, const GateConfig& c) {
  Values value = oracle::scores(logits, c);
  for (std::size_t e = 0; e < bias.size(); ++e) {
    value[e] += bias[e];
  }
  const auto size = value.size() / static_cast<std::size_t>(c.expert_groups);
  Values worth;
  for (std::size_t g = 0; g < static_cast<std::size_t>(c.expert_groups); ++g) {
    Values of_group(value.begin() + static_cast<std::ptrdiff_t>(g * size),
                    value.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(of_group.rbegin(), of_group.rend());
    worth.push_back(size == 1 || c.group_score == GroupScore::max ? of_group[0] : of_group[0] + of_group[1]);
  }
  const std::vector<std::size_t> groups = by_value(worth);
  const std::set<std::size_t> best(groups.begin(), groups.begin() + c.groups_per_token);
  Values chosen;
  for (const std::size_t e : by_value(bias.empty() ? logits : value)) {
    if (best.contains(e / size) && static_cast<std::int64_t>(chosen.size()) < c.top_k) {
      chosen.push_back(static_cast<double>(e));
    }
  }
  return chosen;
}

TEST(ChooseExperts, ByTheDefinition) {
  for (const Problem& q : choice_problems()) {
    for (const bool biased : {false, true}) {
      on_every_device([&](OpContext& c) {
        const std::int64_t experts = q.config.experts;
        const Input logits = c.normal(DType::f32, {q.tokens, experts}, 1.0);
        const Input bias = c.normal(DType::f32, {experts}, 0.3);
        const Tensor expert = c.poisoned(DType::i32, {q.tokens, q.config.top_k});
        c.stream().choose_experts(expert, logits.tensor, biased ? bias.tensor : Tensor(),
                                  c.input(DType::u8, {q.tokens}, q.valid).tensor, q.config);
        Values expected;
        for (std::int64_t t = 0; t < q.tokens; ++t) {
          const Values row = q.valid[t] == 0 ? Values(static_cast<std::size_t>(q.config.top_k), -1)
                                             : chosen_by(oracle::row_of(logits.values, t, experts),
                                                         biased ? bias.values : Values(), q.config);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        c.expect("expert", expert, expected, 0);
      });
    }
  }
}

// Equal logits: the lower expert, of the lower group.
TEST(ChooseExperts, TiesGoToTheLowerIndex) {
  const Problem q = grouped(problem(Kind::topk, 8, 2, 1, 1), 4, 1);
  on_every_device([&](OpContext& c) {
    const Tensor expert = c.poisoned(DType::i32, {1, 2});
    c.stream().choose_experts(expert, c.constant(DType::f32, {1, 8}, 0.5).tensor, {},
                              c.input(DType::u8, {1}, {1}).tensor, q.config);
    c.expect("expert", expert, {0, 1}, 0);
  });
}

// A bias of whole scores decides alone.
TEST(ChooseExperts, TheBiasDecides) {
  const Problem q = by_sigmoid(problem(Kind::topk, 4, 2, 1, 2));
  on_every_device([&](OpContext& c) {
    const Tensor expert = c.poisoned(DType::i32, {2, 2});
    c.stream().choose_experts(expert, c.normal(DType::f32, {2, 4}, 1.0).tensor,
                              c.input(DType::f32, {4}, {-2, 4, -2, 2}).tensor, c.input(DType::u8, {2}, {1, 1}).tensor,
                              q.config);
    c.expect("expert", expert, {1, 3, 1, 3}, 0);
  });
}

// --- weights of choices that somebody else made: in any order, some missing

std::vector<Problem> given_problems() {
  std::vector<Problem> all = {problem(Kind::topk, 8, 3, 3, 20, 4), by_sigmoid(problem(Kind::topk, 8, 3, 2, 70, 5)),
                              by_sigmoid(problem(Kind::topk, 1030, 8, 1, 130, 3)), problem(Kind::topk, 4, 2, 2, 4, 1),
                              problem(Kind::topk, 4, 2, 0, 4)};
  all.push_back(problem(Kind::topk, 160, 40, 2, 65, 7));  // more choices than lanes
  all.push_back(all.front());
  all.back().config.normalize_weights = false;
  all.push_back(all[1]);
  all.back().config.normalize_weights = false;
  all.push_back(all.front());
  all.back().config.counted_choices = 1;
  return all;
}

// Distinct experts in a fixed disorder; every third token lacks its second choice.
Values given(const Problem& q) {
  Values expert;
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    for (std::int64_t k = 0; k < q.config.top_k; ++k) {
      const bool none = q.valid[t] == 0 || (t % 3 == 0 && k == 1);
      expert.push_back(none ? -1 : static_cast<double>((t * 5 + k * 3) % q.config.experts));
    }
  }
  return expert;
}

Values weights_of(const Values& x, const Values& expert, const GateConfig& c) {
  const Values p = oracle::scores(x, c);
  Values w;
  for (const double e : expert) {
    w.push_back(e < 0 ? 0 : p[e]);
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& v : w) {
    v /= c.normalize_weights ? sum : 1;
  }
  return w;
}

struct Given {
  Tensor expert, weight, lse, chosen, share, valid;
};

Given run_choices(OpContext& c, const Tensor& logits, const Problem& q) {
  const std::int64_t t = q.tokens, e = q.config.experts, k = q.config.top_k;
  Given r{.expert = c.input(DType::i32, {t, k}, given(q)).tensor,
          .weight = c.poisoned(DType::f32, {t, k}),
          .lse = c.poisoned(DType::f32, {t}),
          .chosen = c.poisoned(DType::i32, {q.groups(), e}),
          .share = c.poisoned(DType::f64, {q.groups(), e}),
          .valid = c.input(DType::u8, {t}, q.valid).tensor};
  c.stream().gate_choices(r.weight, r.lse, r.chosen, r.share, r.expert, logits, r.valid, q.config);
  return r;
}

TEST(GateChoices, ByTheDefinition) {
  for (const Problem& q : given_problems()) {
    on_every_device([&](OpContext& c) {
      const std::int64_t experts = q.config.experts, k_count = q.config.top_k;
      const Input logits = c.normal(DType::f32, {q.tokens, experts}, 1.5);
      const Given r = run_choices(c, logits.tensor, q);
      const Values expert = given(q);
      oracle::Gate sums;
      oracle::add_lse_and_share(sums, logits.values, q);
      Values weight, chosen(static_cast<std::size_t>(q.groups() * experts), 0);
      for (std::int64_t t = 0; t < q.tokens; ++t) {
        const Values of_token = oracle::row_of(expert, t, k_count);
        const bool valid = q.valid[t] != 0;
        const Values w = valid ? weights_of(oracle::row_of(logits.values, t, experts), of_token, q.config)
                               : Values(of_token.size(), 0);
        weight.insert(weight.end(), w.begin(), w.end());
        const std::int64_t counted = q.config.counted_choices == 0 ? k_count : q.config.counted_choices;
        for (std::int64_t k = 0; k < counted; ++k) {
          const double e = of_token[k];
          if (e >= 0) {
            chosen[static_cast<std::size_t>(q.group_of(t) * experts) + static_cast<std::size_t>(e)] += 1;
          }
        }
      }
      c.expect("weight", r.weight, weight, 1e-5);
      c.expect("lse", r.lse, sums.lse, 1e-5);
      c.expect("chosen", r.chosen, chosen, 0);
      c.expect("share", r.share, sums.share, 1e-5);
    });
  }
}

// gate_backward of such choices: finite differences of everything that depends on the logits, in fp64.
TEST(GateChoices, BackwardIsTheGradient) {
  for (Problem q : given_problems()) {
    if (q.config.experts > 64 || q.config.counted_choices != 0) {
      continue;  // far too many differences; the balance loss of counted choices is gate_test's
    }
    on_every_device([&](OpContext& c) {
      const std::int64_t experts = q.config.experts, k_count = q.config.top_k;
      const Input logits = c.normal(DType::f32, {q.tokens, experts}, 1.0);
      const Input dweight = c.normal(DType::f32, {q.tokens, k_count}, 1.0);
      const Given r = run_choices(c, logits.tensor, q);
      const Tensor dlogits = c.poisoned(DType::f32, {q.tokens, experts});
      const float aux = 0.3f, z = 0.2f;
      c.stream().gate_backward(dlogits, dweight.tensor, r.expert, r.lse, r.chosen, logits.tensor, r.valid, aux, z,
                               q.config);
      const Values expert = given(q), chosen = c.values_of(r.chosen);
      // Each token's own part, so that a difference costs a row and not a batch.
      Values expected;
      for (std::int64_t t = 0; t < q.tokens; ++t) {
        const auto f = [&](const Values& x) {
          const Values w = weights_of(x, oracle::row_of(expert, t, k_count), q.config);
          double total = inner(w, oracle::row_of(dweight.values, t, k_count));
          const Values counts = oracle::row_of(chosen, q.group_of(t), experts);
          const double counted = std::accumulate(counts.begin(), counts.end(), 0.0);
          total += 0.3 * static_cast<double>(experts) / counted * inner(counts, oracle::shares(x, q.config));
          return total + 0.2 * std::pow(oracle::logsumexp(x), 2);
        };
        const Values row = q.valid[t] == 0 ? Values(static_cast<std::size_t>(experts), 0)
                                           : numeric_gradient(f, oracle::row_of(logits.values, t, experts));
        expected.insert(expected.end(), row.begin(), row.end());
      }
      c.expect("dlogits", dlogits, expected, 1e-4);
    });
  }
}

TEST(BalanceBias, MovesAgainstTheLoad) {
  on_every_device([](OpContext& c) {
    const Input choices = c.input(DType::i64, {2, 4}, {3, 9, 5, 0, 2, 0, 0, 1});  // load 5, 9, 5, 1, mean 5
    const Tensor bias = c.input(DType::f32, {4}, {0.5, 0.25, -1, 0}).tensor;
    c.stream().balance_bias(bias, choices.tensor, c.constant(DType::f32, {1}, 0.7).tensor, 0.125f);
    c.expect("bias", bias, {0.5, 0.125, -1, 0.125}, 0);
    // A step that was refused counts for nothing.
    c.stream().balance_bias(bias, choices.tensor, c.constant(DType::f32, {1}, NAN).tensor, 0.125f);
    c.expect("bias again", bias, {0.5, 0.125, -1, 0.125}, 0);
  });
}

TEST(BalanceBias, OfManyExperts) {
  on_every_device([](OpContext& c) {
    const std::int64_t experts = 700;
    const Input choices = c.integers(DType::i64, {2, experts}, 0, 1000);
    const Input bias = c.normal(DType::f32, {experts}, 0.1);
    Values expected = bias.values, load(static_cast<std::size_t>(experts), 0);
    for (std::size_t i = 0; i < choices.values.size(); ++i) {
      load[i % load.size()] += choices.values[i];
    }
    const double mean = std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(experts);
    for (std::size_t e = 0; e < load.size(); ++e) {
      expected[e] += load[e] < mean ? 0.001 : load[e] > mean ? -0.001 : 0;
    }
    c.stream().balance_bias(bias.tensor, choices.tensor, c.constant(DType::f32, {1}, 1).tensor, 0.001f);
    c.expect("bias", bias.tensor, expected, 1e-6);
  });
}

TEST(ChooseExperts, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const auto message = [&](const Problem& q) {
      return error_of([&] {
        c.stream().choose_experts(c.poisoned(DType::i32, {q.tokens, q.config.top_k}),
                                  c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0).tensor, {},
                                  c.input(DType::u8, {q.tokens}, q.valid).tensor, q.config);
      });
    };
    EXPECT_NE(message(grouped(problem(Kind::topk, 8, 2, 1, 4), 3, 1)).find("not 3 equal groups"), std::string::npos);
    EXPECT_NE(message(grouped(problem(Kind::topk, 8, 3, 1, 4), 4, 1)).find("from 1 of 4 groups of 2"),
              std::string::npos);
    EXPECT_NE(message(problem(Kind::gshard, 8, 2, 1, 4)).find("not by chance"), std::string::npos);
  });
}

}  // namespace
}  // namespace orthant::test::choice_test
