// dispatch_plan: capacity, drop policies and the order of packed rows, against the definition choice by choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "router/rules/capacity.h"
#include "tests/router/problems.h"

namespace orthant::test::dispatch_test {
namespace {

// `problems` at capacities from one seat to more seats than tokens.
std::vector<Problem> limited(DropPolicy policy) {
  std::vector<Problem> all;
  for (const Problem& q : problems()) {
    all.push_back(with_capacity(q, 1, 100, policy));
    all.push_back(with_capacity(q, 3, 4, policy));
    all.push_back(with_capacity(q, 5, 4, policy));
    all.push_back(with_capacity(q, 100, 1, policy));
  }
  return all;
}

// Every fifth of them and of the dropless ones: for what follows from the definition, which all of them are held to.
std::vector<Problem> some_limited() {
  const std::vector<Problem> all =
      joined(problems(), joined(limited(DropPolicy::position), limited(DropPolicy::probability)));
  std::vector<Problem> some;
  for (std::size_t i = 0; i < all.size(); i += 5) {
    some.push_back(all[i]);
  }
  return some;
}

// However large the factor, it only adds seats that nobody needs.
TEST(Capacity, OfAnyFactorHoldsAGroup) {
  for (const double factor : {4.0, 1e12, 1e18, 1e300}) {
    const GateConfig config{.experts = 4, .top_k = 2, .capacity_factor = factor, .group_tokens = 16};
    EXPECT_GE(capacity(config, 16), 16) << factor;
  }
}

// After keep_seated, a plan without capacity seats exactly what the plan with capacity kept, and in the same rows.
TEST(KeepSeated, LeavesWhatThePlanKept) {
  for (const Problem& q : some_limited()) {
    on_every_device([&](OpContext& c) {
      const Routed r = run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q);
      const Planned limited_plan = run_plan(c, r.expert, r.weight, q);
      Values expected = c.values_of(r.expert);
      const Values rows = c.values_of(limited_plan.row);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        expected[i] = rows[i] < 0 ? -1 : expected[i];
      }
      c.stream().keep_seated(r.expert, limited_plan.row);
      c.expect("expert", r.expert, expected, 0);
      Problem dropless = q;
      dropless.config.capacity_factor = 0;
      c.expect("row", run_plan(c, r.expert, r.weight, dropless).row, rows, 0);
    });
  }
}

TEST(KeepSeated, RefusesWhatDoesNotFit) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  EXPECT_THROW(c.stream().keep_seated(c.poisoned(DType::i32, {4, 2}), c.poisoned(DType::i32, {4, 1})), Error);
}

void expect_the_definition(const std::vector<Problem>& all) {
  for (const Problem& q : all) {
    on_every_device([&](OpContext& c) {
      const Routed r = run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q);
      // The plan is judged on the device's own weights: near ties may fall either way in the gate.
      const oracle::Plan want = oracle::plan(c.values_of(r.expert), c.values_of(r.weight), q);
      const Planned got = run_plan(c, r.expert, r.weight, q);
      c.expect("row", got.row, want.row, 0);
      c.expect("count", got.count, want.count, 0);
      c.expect("dropped", got.dropped, want.dropped, 0);
      ASSERT_EQ(got.rows, static_cast<std::int64_t>(want.source.size()));
      Values source = want.source, offset = {0};
      source.resize(got.source.elements(), -1);
      c.expect("source", got.source, source, 0);
      std::partial_sum(want.count.begin(), want.count.end(), std::back_inserter(offset));
      c.expect("offset", got.offset, offset, 0);
    });
  }
}

TEST(DispatchPlan, IsTheDefinitionDropless) {
  expect_the_definition(problems());
}
TEST(DispatchPlan, IsTheDefinitionByPosition) {
  expect_the_definition(limited(DropPolicy::position));
}
TEST(DispatchPlan, IsTheDefinitionByProbability) {
  expect_the_definition(limited(DropPolicy::probability));
}

// Where devices change their ways, on the choices of the fp64 gate, many of which are for few experts.
void expect_the_definition_of_fp64_choices(const Problem& q) {
  const std::int64_t experts = q.config.experts;
  Values logits;
  const RandomKey key{.seed = 2, .purpose = Purpose::test, .site = 0, .step = 0};
  for (std::int64_t i = 0; i < q.tokens * experts; ++i) {
    const bool liked = i % experts < q.config.top_k;  // by every second token
    logits.push_back(static_cast<double>(normal(key, static_cast<std::uint64_t>(i))) +
                     (liked && i / experts % 2 == 0 ? 9 : 0));
  }
  const oracle::Gate gate = oracle::gate(logits, q);
  Values weight = gate.weight;
  for (double& w : weight) {
    w = rounded(DType::f32, w);
  }
  const oracle::Plan want = oracle::plan(gate.expert, weight, q);
  Values source = want.source, offset = {0};
  source.resize(gate.expert.size(), -1);
  std::partial_sum(want.count.begin(), want.count.end(), std::back_inserter(offset));
  on_every_device([&](OpContext& c) {
    const Shape shape = {q.tokens, q.config.top_k};
    const Planned got =
        run_plan(c, c.input(DType::i32, shape, gate.expert).tensor, c.input(DType::f32, shape, weight).tensor, q);
    c.expect("row", got.row, want.row, 0);
    c.expect("source", got.source, source, 0);
    c.expect("count", got.count, want.count, 0);
    c.expect("dropped", got.dropped, want.dropped, 0);
    c.expect("offset", got.offset, offset, 0);
  });
}

TEST(DispatchPlan, IsTheDefinitionAtBlockBoundaries) {
  for (const Problem& q : joined(block_boundaries(), long_rows())) {
    expect_the_definition_of_fp64_choices(q);
  }
}
TEST(DispatchPlan, IsTheDefinitionAtBlockBoundariesOfSeats) {
  for (const Problem& q : seat_boundaries()) {
    expect_the_definition_of_fp64_choices(with_capacity(q, 1, 2, DropPolicy::position));
    expect_the_definition_of_fp64_choices(with_capacity(q, 1, 1, DropPolicy::probability));
  }
}

// With rows set apart for each expert, the same choices lie in the same order, each expert's from its own place on.
TEST(DispatchPlan, SetsRowsApartForEachExpert) {
  for (Problem q : some_limited()) {
    on_every_device([&](OpContext& c) {
      const Routed r = run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q);
      q.config.rows_per_expert = 0;
      const Planned packed = run_plan(c, r.expert, r.weight, q);
      const Values count = c.values_of(packed.count), begin = c.values_of(packed.offset);
      q.config.rows_per_expert = std::max<std::int64_t>(1, q.tokens);
      const Planned apart = run_plan(c, r.expert, r.weight, q);
      Values source, offset, row(static_cast<std::size_t>(q.tokens * q.config.top_k), -1);
      const Values from = c.values_of(packed.source);
      for (std::size_t e = 0; e < count.size(); ++e) {
        offset.push_back(static_cast<double>(source.size()));
        for (double i = 0; i < count[e]; ++i) {
          const double choice = from[begin[e] + i];
          row[choice] = static_cast<double>(source.size());
          source.push_back(choice);
        }
        source.resize((e + 1) * static_cast<std::size_t>(q.config.rows_per_expert), -1);
      }
      offset.push_back(static_cast<double>(source.size()));
      c.expect("row", apart.row, row, 0);
      c.expect("source", apart.source, source, 0);
      c.expect("offset", apart.offset, offset, 0);
      c.expect("count", apart.count, count, 0);
    });
  }
}

TEST(DispatchPlan, RefusesMoreChoicesThanRowsSetApart) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  Problem q = problem(Kind::switch_, 2, 1, 1, 4);
  q.config.rows_per_expert = 3;
  EXPECT_THROW(run_plan(c, c.constant(DType::i32, {4, 1}, 1).tensor, c.constant(DType::f32, {4, 1}, 1).tensor, q),
               Error);
}

// A plugin's gate may write anything; the host device says so before it counts by it.
TEST(DispatchPlan, RefusesAnExpertThatIsNotThere) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Problem q = problem(Kind::switch_, 2, 1, 1, 4);
  EXPECT_THROW(run_plan(c, c.constant(DType::i32, {4, 1}, 2).tensor, c.constant(DType::f32, {4, 1}, 1).tensor, q),
               Error);
}

struct Example {
  Values expert, weight;  // [T, K]
  Values row;
};

void expect_rows(const Problem& q, const Example& x) {
  on_every_device([&](OpContext& c) {
    const Shape shape = {q.tokens, q.config.top_k};
    const Planned p =
        run_plan(c, c.input(DType::i32, shape, x.expert).tensor, c.input(DType::f32, shape, x.weight).tensor, q);
    EXPECT_EQ(c.values_of(p.row), x.row);
  });
}

// Two experts, four tokens, two seats each (factor 1).
TEST(DispatchPlan, PositionDropsTheLatest) {
  expect_rows(with_capacity(problem(Kind::switch_, 2, 1, 1, 4), 1, 1),
              {{1, 1, 1, 1}, {0.6, 0.7, 0.8, 0.9}, {0, 1, -1, -1}});
}

TEST(DispatchPlan, ProbabilityDropsTheLeastLikely) {
  expect_rows(with_capacity(problem(Kind::switch_, 2, 1, 1, 4), 1, 1, DropPolicy::probability),
              {{1, 1, 1, 1}, {0.6, 0.7, 0.8, 0.7}, {-1, 0, 1, -1}});  // of the two with 0.7 the earlier stays
}

TEST(DispatchPlan, FirstChoicesAreSeatedBeforeSecondOnes) {
  // Three experts, three tokens, one seat each: the last token's first choice beats the second choices before it.
  for (const Kind router : {Kind::gshard, Kind::topk}) {
    expect_rows(with_capacity(problem(router, 3, 2, 1, 3), 1, 2),
                {{0, 2, 1, 2, 2, 0}, {0.6, 0.4, 0.6, 0.4, 0.6, 0.4}, {0, -1, 1, -1, 2, -1}});
  }
}

TEST(DispatchPlan, ProbabilityKeepsGshardsFirstChoicesFirst) {
  // Expert 2 has one seat: token 0 wants it second with weight 0.9, token 1 first with 0.5.
  const Example first{{0, 2, 2, 1}, {0.1, 0.9, 0.5, 0.5}, {0, -1, 2, 1}};
  const Example greatest{{0, 2, 2, 1}, {0.1, 0.9, 0.5, 0.5}, {0, 2, -1, 1}};
  expect_rows(with_capacity(problem(Kind::gshard, 3, 2, 1, 2), 1, 2, DropPolicy::probability), first);
  expect_rows(with_capacity(problem(Kind::topk, 3, 2, 1, 2), 1, 2, DropPolicy::probability), greatest);
}

TEST(DispatchPlan, GroupsHaveSeatsOfTheirOwn) {
  // One seat a group; rows run through the groups in token order.
  expect_rows(with_capacity(problem(Kind::switch_, 2, 1, 2, 2), 1, 1),
              {{1, 1, 1, 1}, {0.5, 0.5, 0.5, 0.5}, {0, -1, 1, -1}});
}

TEST(DispatchPlan, AllTokensOnOneExpert) {
  const Problem q = with_capacity(problem(Kind::topk, 8, 1, 2, 16), 2, 1);  // 4 seats of 16
  on_every_device([&](OpContext& c) {
    const Planned p =
        run_plan(c, c.constant(DType::i32, {32, 1}, 5).tensor, c.constant(DType::f32, {32, 1}, 1).tensor, q);
    EXPECT_EQ(c.values_of(p.count), (Values{0, 0, 0, 0, 0, 8, 0, 0}));
    EXPECT_EQ(c.values_of(p.dropped), (Values{0, 0, 0, 0, 0, 24, 0, 0}));
  });
}

TEST(DispatchPlan, PaddingTakesNoSeatAndCountsForNoCapacity) {
  // Valid tokens of a group in the same order, without padding among them: the same rows.
  for (const DropPolicy policy : {DropPolicy::position, DropPolicy::probability}) {
    const Problem padded = with_capacity(problem(Kind::topk, 4, 2, 2, 12, 4), 3, 4, policy);
    const Problem compact = with_capacity(problem(Kind::topk, 4, 2, 2, 9), 3, 4, policy);
    on_every_device([&](OpContext& c) {
      const Input logits = c.normal(DType::f32, {18, 4}, 1.0);
      Values spread;
      for (std::int64_t t = 0, from = 0; t < 24; ++t) {
        const bool is_valid = padded.valid[t] != 0;
        const Values row = is_valid ? oracle::row_of(logits.values, from++, 4) : Values{9, 8, 7, 6};
        spread.insert(spread.end(), row.begin(), row.end());
      }
      const Routed a = run_gate(c, logits, compact), b = run_gate(c, c.input(DType::f32, {24, 4}, spread), padded);
      const Planned pa = run_plan(c, a.expert, a.weight, compact), pb = run_plan(c, b.expert, b.weight, padded);
      EXPECT_EQ(c.values_of(pa.count), c.values_of(pb.count));
      EXPECT_EQ(c.values_of(pa.dropped), c.values_of(pb.dropped));
      Values rows;
      const Values all = c.values_of(pb.row);
      for (std::int64_t t = 0; t < 24; ++t) {
        if (padded.valid[t] != 0) {
          const Values row = oracle::row_of(all, t, 2);
          rows.insert(rows.end(), row.begin(), row.end());
        }
      }
      EXPECT_EQ(c.values_of(pa.row), rows);
    });
  }
}

TEST(DispatchPlan, PermutedExpertsKeepTheSameChoices) {
  for (const Problem& q : some_limited()) {
    on_every_device([&](OpContext& c) {
      const Routed r = run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q);
      Values moved = c.values_of(r.expert);
      for (double& e : moved) {
        e = e < 0 ? e : static_cast<double>(q.config.experts) - 1 - e;
      }
      const Planned a = run_plan(c, r.expert, r.weight, q);
      const Planned b = run_plan(c, c.input(DType::i32, r.expert.shape(), moved).tensor, r.weight, q);
      Values count = c.values_of(a.count), row_a = c.values_of(a.row), row_b = c.values_of(b.row);
      std::reverse(count.begin(), count.end());
      EXPECT_EQ(count, c.values_of(b.count));
      for (std::size_t i = 0; i < row_a.size(); ++i) {
        EXPECT_EQ(row_a[i] < 0, row_b[i] < 0) << "choice " << i;
      }
    });
  }
}

TEST(Capacity, IsExact) {
  const auto seats = [](double factor, std::int64_t top_k, std::int64_t valid, std::int64_t experts) {
    GateConfig c;
    c.experts = experts;
    c.top_k = top_k;
    c.capacity_factor = factor;
    return capacity(c, valid);
  };
  EXPECT_EQ(seats(1.1, 1, 10, 1), 11);      // 1.1 * 10 in doubles is above 11
  EXPECT_EQ(seats(1.1, 2, 100, 20), 11);    // the same with a division
  EXPECT_EQ(seats(1.25, 1, 64, 8), 10);     // exact
  EXPECT_EQ(seats(1.25, 1, 65, 8), 11);     // 10.16
  EXPECT_EQ(seats(0.3, 1, 10, 3), 1);       // exactly one
  EXPECT_EQ(seats(0.000001, 1, 1, 64), 1);  // never less than one
  EXPECT_EQ(seats(1, 1, 0, 8), 1);
  EXPECT_EQ(seats(2, 2, 1LL << 30, 4), 1LL << 30);
  EXPECT_GT(seats(0, 1, 1LL << 40, 1), 1LL << 40);  // dropless
}

}  // namespace
}  // namespace orthant::test::dispatch_test
