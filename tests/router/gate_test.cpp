// gate, gate_backward, gate_losses against the fp64 definition and its finite differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/router/problems.h"
#include "tests/support/error_of.h"

namespace orthant::test::gate_test {
namespace {

void expect_the_definition(const std::vector<Problem>& all) {
  for (const Problem& q : all) {
    std::optional<oracle::Gate> want;  // the same on every device
    on_every_device([&](OpContext& c) {
      const Input logits = c.normal(DType::f32, {q.tokens, q.config.experts}, 2.0);
      if (!want) {
        want = oracle::gate(logits.values, q);
      }
      const Routed got = run_gate(c, logits, q);
      c.expect("expert", got.expert, want->expert, 0);
      c.expect("weight", got.weight, want->weight, 1e-6);
      c.expect("lse", got.lse, want->lse, 1e-6);
      c.expect("chosen", got.chosen, want->chosen, 0);
      c.expect("share", got.share, want->share, 1e-6);
    });
  }
}

TEST(Gate, IsTheDefinition) {
  expect_the_definition(problems());
}
TEST(Gate, IsTheDefinitionAtBlockBoundaries) {
  expect_the_definition(joined(block_boundaries(), long_rows()));
}

TEST(Gate, TiesGoToTheLowerExpert) {
  for (const Kind router : {Kind::switch_, Kind::gshard, Kind::topk}) {
    const Problem q = problem(router, 6, router == Kind::switch_ ? 1 : 2, 1, 4);
    on_every_device([&](OpContext& c) {
      // All equal; two at the top; three second; negative zero equals zero.
      const Input logits =
          c.input(DType::f32, {4, 6}, {1, 1, 1, 1, 1, 1, 0, 3, 0, 3, 0, 3, 2, 5, 2, 2, 0, 0, -1, -1, -0.0, 0, 0, -1});
      const Values best = {0, 1, 1, 2}, second = {1, 3, 0, 3};
      const Values expert = c.values_of(run_gate(c, logits, q).expert);
      for (std::size_t t = 0; t < 4; ++t) {
        EXPECT_EQ(expert[t * static_cast<std::size_t>(q.config.top_k)], best[t]) << "token " << t;
        if (router == Kind::topk) {
          EXPECT_EQ(expert[t * 2 + 1], second[t]) << "token " << t;
        }
      }
    });
  }
}

// Logits that are neighbours among the floats, as keys of fewer bits have them equal: a few of them, all, or all but a
// few tokens' of a warp. Rising, falling, and with the choice's last expert and the next one neighbours.
TEST(Gate, NeighboursAmongFloatsKeepTheirOrder) {
  for (const auto& [experts, k_count] :
       {std::pair<int, int>{8, 2}, {16, 3}, {20, 8}, {64, 8}, {100, 16}, {256, 16}, {300, 9}, {1024, 32}}) {
    const Problem q = problem(Kind::topk, experts, k_count, 1, 12, 5);
    Values x;
    for (int t = 0; t < 12; ++t) {
      float neighbour = t % 2 == 0 ? 1.5f : -1.5f;
      for (int e = 0; e < experts; ++e) {
        const int place = t < 4 ? e : t < 8 ? e * 7 % experts - k_count : e - experts + 3;
        if (place >= 0) {
          neighbour = std::nextafter(neighbour, t % 4 < 2 ? 9.0f : -9.0f);
        }
        x.push_back(place >= 0 ? neighbour : t % 3 == 0 ? neighbour : 3.0 + 0.25 * e);
      }
    }
    on_every_device([&](OpContext& c) {
      const Input logits = c.input(DType::f32, {12, experts}, x);
      const oracle::Gate want = oracle::gate(logits.values, q);
      const Routed got = run_gate(c, logits, q);
      c.expect("expert", got.expert, want.expert, 0);
      c.expect("weight", got.weight, want.weight, 1e-6);
      c.expect("chosen", got.chosen, want.chosen, 0);
    });
  }
}

// Scores that are 0 in fp32 have no shares, and no gradient, instead of 0 / 0.
TEST(Gate, SigmoidsThatVanishWeighNothing) {
  const Problem q = by_sigmoid(problem(Kind::topk, 4, 2, 1, 3));
  on_every_device([&](OpContext& c) {
    const Routed r = run_gate(c, c.constant(DType::f32, {3, 4}, -300), q);
    c.expect("expert", r.expert, {0, 1, 0, 1, 0, 1}, 0);
    c.expect("weight", r.weight, Values(6, 0.0), 0);
    c.expect("share", r.share, Values(4, 0.0), 0);
    const Tensor dlogits = c.poisoned(DType::f32, {3, 4});
    c.stream().gate_backward(dlogits, c.constant(DType::f32, {3, 2}, 1).tensor, r.expert, r.lse, r.chosen, r.logits,
                             r.valid, 1.0f, 0.0f, q.config);
    c.expect("dlogits", dlogits, Values(12, 0.0), 0);
  });
}

// Two tokens in each group of four, and every token is equally likely for expert 0: the lower ones.
TEST(Gate, ExpertsThatChooseTakeTheLowerTokenOfEqualOnes) {
  const Problem q = with_capacity(problem(Kind::expert_choice, 2, 2, 2, 4), 1, 1);
  on_every_device([&](OpContext& c) {
    const Input logits = c.input(DType::f32, {8, 2}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1});
    const Routed r = run_gate(c, logits, q);
    c.expect("expert", r.expert, {0, 1, 0, 1, -1, -1, -1, -1, 0, 1, 0, -1, -1, 1, -1, -1}, 0);
    c.expect("chosen", r.chosen, {2, 2, 2, 2}, 0);
  });
}

// The auxiliary loss of experts that choose is 1 per token, and its gradient exactly 0.
TEST(GateBackward, ExpertsThatChooseHaveNoBalanceToLearn) {
  const Problem q = with_capacity(problem(Kind::expert_choice, 6, 6, 3, 10, 4), 2, 1);
  on_every_device([&](OpContext& c) {
    const Routed r = run_gate(c, c.normal(DType::f32, {q.tokens, 6}, 3.0), q);
    const Tensor balance = c.constant(DType::f64, {1}, 0).tensor, z = c.constant(DType::f64, {1}, 0).tensor;
    c.stream().gate_losses(balance, z, r.chosen, r.share, r.lse, q.config);
    c.expect("balance", balance, {static_cast<double>(q.valid_in(0) + q.valid_in(1) + q.valid_in(2))}, 1e-6);
    const Tensor dlogits = c.poisoned(DType::f32, {q.tokens, 6});
    const Tensor dweight = c.constant(DType::f32, {q.tokens, 6}, 0).tensor;
    c.stream().gate_backward(dlogits, dweight, r.expert, r.lse, r.chosen, r.logits, r.valid, 1.0f, 0.0f, q.config);
    c.expect("dlogits", dlogits, Values(static_cast<std::size_t>(q.tokens * 6), 0.0), 0);
  });
}

TEST(Gate, GshardKeepsTheSecondExpertInProportion) {
  const std::int64_t tokens = 20000;
  const Problem q = problem(Kind::gshard, 3, 2, 1, tokens);
  on_every_device([&](OpContext& c) {
    Values x;
    for (std::int64_t t = 0; t < tokens; ++t) {
      x.insert(x.end(), {std::log(0.1), std::log(0.6), std::log(0.3)});
    }
    const Values expert = c.values_of(run_gate(c, c.input(DType::f32, {tokens, 3}, x), q).expert);
    std::int64_t kept = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      kept += expert[2 * t + 1] == 2 ? 1 : 0;
    }
    // The second weight is 1/3, so 2/3 are kept; five standard deviations are 0.017.
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(tokens), 2.0 / 3, 0.017);
  });
}

TEST(Gate, GshardDecidesByTheTokensGlobalNumber) {
  const Problem q = problem(Kind::gshard, 4, 2, 1, 64);
  Problem reversed = q;
  std::reverse(reversed.token.begin(), reversed.token.end());
  on_every_device([&](OpContext& c) {
    const Input logits = c.normal(DType::f32, {64, 4}, 1.0);
    Values back;
    for (std::int64_t t = 63; t >= 0; --t) {
      const Values row = oracle::row_of(logits.values, t, 4);
      back.insert(back.end(), row.begin(), row.end());
    }
    const Values expert = c.values_of(run_gate(c, logits, q).expert);
    const Values other = c.values_of(run_gate(c, c.input(DType::f32, {64, 4}, back), reversed).expert);
    for (std::int64_t t = 0; t < 64; ++t) {
      EXPECT_EQ(oracle::row_of(expert, t, 2), oracle::row_of(other, 63 - t, 2)) << "token " << t;
    }
  });
}

TEST(Gate, PermutedExpertsPermuteTheResult) {
  for (const Problem& q : problems()) {
    on_every_device([&](OpContext& c) {
      const std::int64_t experts = q.config.experts;
      const Input logits = c.normal(DType::f32, {q.tokens, experts}, 2.0);
      Values moved(logits.values.size());
      const auto to = [&](std::int64_t e) { return (e + 3) % experts; };
      for (std::int64_t t = 0; t < q.tokens; ++t) {
        for (std::int64_t e = 0; e < experts; ++e) {
          moved[t * experts + to(e)] = logits.values[t * experts + e];
        }
      }
      const Routed a = run_gate(c, logits, q), b = run_gate(c, c.input(DType::f32, {q.tokens, experts}, moved), q);
      Values expert = c.values_of(a.expert), weight = c.values_of(a.weight);
      for (double& e : expert) {
        e = e < 0 ? e : static_cast<double>(to(static_cast<std::int64_t>(e)));
      }
      if (q.kind == Kind::expert_choice) {  // there the choices are the experts
        const Values e_before = expert, w_before = weight;
        for (std::int64_t i = 0; i < q.tokens * experts; ++i) {
          const auto at = static_cast<std::size_t>(i / experts * experts + to(i % experts));
          expert[at] = e_before[i];
          weight[at] = w_before[i];
        }
      }
      EXPECT_EQ(expert, c.values_of(b.expert));
      // The softmax's sum runs in the experts' order: the last bit may differ.
      c.expect("weight", b.weight, weight, 1e-6);
    });
  }
}

// Loss = <dweight, weight> + aux * balance + z * z_loss by logits, with choices and counts held.
TEST(GateBackward, IsTheFiniteDifference) {
  const double aux = 0.3, z = 0.2;
  for (const Problem& q : problems()) {
    std::optional<Values> want;  // the same on every device
    on_every_device([&](OpContext& c) {
      const std::int64_t experts = q.config.experts, k_count = q.config.top_k;
      const Input logits = c.normal(DType::f32, {q.tokens, experts}, 1.5);
      const oracle::Gate base = oracle::gate(logits.values, q);
      Values dweight = c.normal(DType::f32, {q.tokens, k_count}, 1.0).values;
      for (std::size_t i = 0; i < dweight.size(); ++i) {
        dweight[i] = base.expert[i] < 0 ? 0 : dweight[i];  // as combine_backward gives it
      }
      const auto loss = [&](const Values& x) {
        double sum = aux * oracle::balance_loss(x, base.chosen, q) + z * oracle::z_loss(x, q);
        for (std::int64_t t = 0; t < q.tokens; ++t) {
          const Values w = oracle::weights(oracle::row_of(x, t, experts), oracle::row_of(base.ranked, t, k_count), q);
          for (std::int64_t k = 0; k < k_count; ++k) {
            sum += w[k] * dweight[t * k_count + k];
          }
        }
        return sum;
      };
      const Routed r = run_gate(c, logits, q);
      const Tensor dlogits = c.poisoned(DType::f32, {q.tokens, experts});
      c.stream().gate_backward(dlogits, c.input(DType::f32, {q.tokens, k_count}, dweight).tensor, r.expert, r.lse,
                               r.chosen, r.logits, r.valid, static_cast<float>(aux), static_cast<float>(z), q.config);
      if (!want) {
        want = numeric_gradient(loss, logits.values);
      }
      c.expect("dlogits", dlogits, *want, 2e-5);
    });
  }
}

// As above, a token at a time: with the counts held, a token's logits enter its own terms alone.
TEST(GateBackward, IsTheFiniteDifferenceAtBlockBoundaries) {
  const double aux = 0.3, z = 0.2;
  std::vector<Problem> all = joined(block_boundaries(), long_rows());
  all.push_back(with_capacity(problem(Kind::expert_choice, 1030, 1030, 1, 4, 4), 1030, 1));
  all.push_back(with_capacity(by_sigmoid(problem(Kind::expert_choice, 1030, 1030, 1, 4, 4)), 1030, 1));
  for (const Problem& q : all) {
    const std::int64_t experts = q.config.experts, k_count = q.config.top_k;
    if (q.tokens * experts * experts > 6000000 || q.tokens * experts > 12000) {  // these take long
      continue;
    }
    Values want;
    on_every_device([&](OpContext& c) {
      const Input logits = c.normal(DType::f32, {q.tokens, experts}, 1.5);
      const Input dweight = c.normal(DType::f32, {q.tokens, k_count}, 1.0);
      const Routed r = run_gate(c, logits, q);
      const bool experts_choose = q.kind == Kind::expert_choice;
      if (want.empty()) {  // the same on every device
        const oracle::Gate base = oracle::gate(logits.values, q);
        for (std::int64_t t = 0; t < q.tokens; ++t) {
          const Values counts = oracle::row_of(base.chosen, q.group_of(t), experts);
          const double counted = std::accumulate(counts.begin(), counts.end(), 0.0);
          Values factor = oracle::row_of(dweight.values, t, k_count);
          for (std::size_t k = 0; k < factor.size(); ++k) {  // an expert that did not choose the token has no weight
            const bool chosen = base.expert[static_cast<std::size_t>(t * k_count) + k] >= 0;
            factor[k] = experts_choose && !chosen ? 0 : factor[k];
          }
          const auto loss = [&](const Values& x) {
            const Values w = oracle::weights(x, oracle::row_of(base.ranked, t, k_count), q);
            const Values share = oracle::shares(x, q.config);
            const double lse = oracle::logsumexp(x);
            return inner(w, factor) + aux * static_cast<double>(experts) / counted * inner(counts, share) +
                   z * lse * lse;
          };
          const bool is_valid = q.valid[t] != 0;
          const Values gradient = is_valid ? numeric_gradient(loss, oracle::row_of(logits.values, t, experts))
                                           : Values(static_cast<std::size_t>(experts), 0.0);
          want.insert(want.end(), gradient.begin(), gradient.end());
        }
      }
      const Tensor dlogits = c.poisoned(DType::f32, {q.tokens, experts});
      c.stream().gate_backward(dlogits, dweight.tensor, r.expert, r.lse, r.chosen, r.logits, r.valid,
                               static_cast<float>(aux), static_cast<float>(z), q.config);
      c.expect("dlogits", dlogits, want, 2e-5);
    });
  }
}

TEST(GateLosses, AreTheDefinitionAndAccumulate) {
  for (const Problem& q : joined(joined(problems(), block_boundaries()), long_rows())) {
    Values want;  // the same on every device
    on_every_device([&](OpContext& c) {
      const Input logits = c.normal(DType::f32, {q.tokens, q.config.experts}, 1.5);
      if (want.empty()) {
        const oracle::Gate base = oracle::gate(logits.values, q);
        want = {10 + oracle::balance_loss(logits.values, base.chosen, q), 20 + oracle::z_loss(logits.values, q)};
      }
      const Routed r = run_gate(c, logits, q);
      const Tensor balance = c.constant(DType::f64, {1}, 10).tensor, z = c.constant(DType::f64, {1}, 20).tensor;
      c.stream().gate_losses(balance, z, r.chosen, r.share, r.lse, q.config);
      c.expect("balance", balance, {want[0]}, 1e-6);
      c.expect("z", z, {want[1]}, 1e-6);
    });
  }
}

TEST(GateLosses, BalancedLoadIsOnePerTokenAndOneExpertIsE) {
  const Problem q = problem(Kind::topk, 4, 1, 1, 8);
  on_every_device([&](OpContext& c) {
    for (const bool balanced : {true, false}) {
      Values x(32, 0.0);
      for (std::size_t t = 0; t < 8; ++t) {
        x[t * 4 + (balanced ? t % 4 : 2)] = 30;
      }
      const Routed r = run_gate(c, c.input(DType::f32, {8, 4}, x), q);
      const Tensor balance = c.constant(DType::f64, {1}, 0).tensor, z = c.constant(DType::f64, {1}, 0).tensor;
      c.stream().gate_losses(balance, z, r.chosen, r.share, r.lse, q.config);
      EXPECT_NEAR(c.values_of(balance)[0], balanced ? 8 : 32, 1e-5);
    }
  });
}

// Padding rows hold NaN here: if any output depended on them it would show.
TEST(Gate, PaddingChangesNothing) {
  for (const Kind router : {Kind::switch_, Kind::gshard, Kind::topk, Kind::expert_choice}) {
    const bool experts_choose = router == Kind::expert_choice;
    const std::int64_t k_count = router == Kind::switch_ ? 1 : experts_choose ? 5 : 2;
    const std::int64_t seats = experts_choose ? 2 : 0;
    const Problem padded = with_capacity(problem(router, 5, k_count, 2, 12, 4), seats, 1);  // 9 of 12 tokens are valid
    Problem compact = with_capacity(problem(router, 5, k_count, 2, 9), seats, 1);
    on_every_device([&](OpContext& c) {
      const Input logits = c.normal(DType::f32, {18, 5}, 1.0);
      Values with_nan;
      compact.token.clear();
      for (std::int64_t t = 0, from = 0; t < 24; ++t) {
        const bool is_valid = padded.valid[t] != 0;
        const Values row = is_valid ? oracle::row_of(logits.values, from++, 5) : Values(5, std::nan(""));
        with_nan.insert(with_nan.end(), row.begin(), row.end());
        if (is_valid) {
          compact.token.push_back(padded.token[t]);
        }
      }
      const auto outputs = [&](const Input& x, const Problem& q) {
        const Routed r = run_gate(c, x, q);
        const Tensor balance = c.constant(DType::f64, {1}, 0).tensor, z = c.constant(DType::f64, {1}, 0).tensor;
        c.stream().gate_losses(balance, z, r.chosen, r.share, r.lse, q.config);
        const Tensor dlogits = c.poisoned(DType::f32, {q.tokens, 5});
        c.stream().gate_backward(dlogits, r.weight, r.expert, r.lse, r.chosen, r.logits, r.valid, 0.1f, 0.1f, q.config);
        Values all;
        for (const Tensor& t : {r.lse, r.expert, r.weight, dlogits}) {
          const std::int64_t columns = t.rank() == 1 ? 1 : t.dim(1);
          const Values v = c.values_of(t);
          for (std::int64_t row = 0; row < q.tokens; ++row) {
            const Values one = oracle::row_of(v, row, columns);
            if (q.valid[row] != 0) {
              all.insert(all.end(), one.begin(), one.end());
            } else {
              EXPECT_EQ(one, Values(static_cast<std::size_t>(columns), t.dtype() == DType::i32 ? -1 : 0));
            }
          }
        }
        for (const Tensor& t : {r.chosen, r.share, balance, z}) {
          const Values v = c.values_of(t);
          all.insert(all.end(), v.begin(), v.end());
        }
        return all;
      };
      EXPECT_EQ(outputs(c.input(DType::f32, {24, 5}, with_nan), padded), outputs(logits, compact));
    });
  }
}

TEST(Gate, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const auto message = [&](const Problem& q) {
      return error_of([&] { run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q); });
    };
    EXPECT_NE(message(problem(Kind::topk, 2, 3, 1, 4)).find("3 of 2 experts"), std::string::npos);
    EXPECT_NE(message(problem(Kind::gshard, 4, 1, 1, 4)).find("by chance, top_k is 1"), std::string::npos);
    EXPECT_NE(message(problem(Kind::expert_choice, 4, 4, 1, 4)).find("capacity_factor"), std::string::npos);
    EXPECT_NE(message(by_sigmoid(problem(Kind::gshard, 4, 2, 1, 4))).find("sigmoid"), std::string::npos);
    const Problem few = with_capacity(problem(Kind::expert_choice, 4, 2, 1, 4), 1, 1);
    EXPECT_NE(message(few).find("each of the 4 experts"), std::string::npos);
    Problem q = problem(Kind::topk, 4, 1, 1, 4);
    q.config.group_tokens = 3;
    EXPECT_NE(message(q).find("whole groups"), std::string::npos);
  });
}

}  // namespace
}  // namespace orthant::test::gate_test
