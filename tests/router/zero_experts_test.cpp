// Zero-computation experts: their choices are told apart and counted, and dispatch_plan gives the others the seats and
// rows that they would have without them.
#include <gtest/gtest.h>

#include "tests/router/problems.h"

namespace orthant::test::zero_experts_test {
namespace {

GateConfig config_of(std::int64_t experts, std::int64_t zero, std::int64_t k) {
  return {.experts = experts, .top_k = k, .zero_experts = zero, .group_tokens = 1};
}

TEST(ZeroExperts, ChoicesAreParted) {
  for (const auto& [experts, zero, tokens] : {std::tuple{5, 2, 7}, {3, 2, 1}, {64, 1, 700}, {1030, 1029, 40}}) {
    const std::int64_t k = 2;
    const GateConfig config = config_of(experts, zero, k);
    on_every_device([&, experts = experts, zero = zero, tokens = tokens](OpContext& c) {
      const Input expert = c.integers(DType::i32, {tokens, k}, -1, experts);
      Values real = expert.values, other(real.size(), 0), count(static_cast<std::size_t>(zero), 0);
      for (std::size_t i = 0; i < real.size(); ++i) {
        if (const auto number = static_cast<std::int64_t>(real[i]) - (experts - zero); number >= 0) {
          real[i] = -1;
          other[i] = 1;
          ++count[static_cast<std::size_t>(number)];
        }
      }
      const Tensor got_real = c.poisoned(DType::i32, {tokens, k}), got_other = c.poisoned(DType::f32, {tokens, k}),
                   got_count = c.poisoned(DType::i32, {zero});
      c.stream().part_choices(got_real, got_other, got_count, expert.tensor, config);
      c.expect("real", got_real, real, 0);
      c.expect("other", got_other, other, 0);
      c.expect("count", got_count, count, 0);
    });
  }
}

TEST(ZeroExperts, RefuseWhatDoesNotFit) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const auto part = [&](const GateConfig& config, double expert) {
    c.stream().part_choices(c.poisoned(DType::i32, {4, 2}), c.poisoned(DType::f32, {4, 2}), c.poisoned(DType::i32, {2}),
                            c.constant(DType::i32, {4, 2}, expert).tensor, config);
  };
  EXPECT_NO_THROW(part(config_of(5, 2, 2), 4));
  EXPECT_THROW(part(config_of(5, 2, 2), 5), Error);
  EXPECT_THROW(part(config_of(5, 3, 2), 4), Error) << "of count";
  EXPECT_THROW(part(config_of(2, 2, 2), 1), Error) << "none computes";
}

// Seats and rows are those of a plan in which the last experts have weights, but no choices.
TEST(ZeroExperts, TakeNoSeats) {
  for (const Problem& dropless : {problem(Kind::topk, 8, 2, 3, 12), problem(Kind::topk, 70, 4, 2, 33, 5)}) {
    for (const DropPolicy policy : {DropPolicy::position, DropPolicy::probability}) {
      for (const Problem& q : {dropless, with_capacity(dropless, 1, 2, policy)}) {
        const std::int64_t zero = q.config.experts / 3, experts = q.config.experts - zero;
        on_every_device([&](OpContext& c) {
          const Routed r = run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q);
          Problem with_zero = q;
          with_zero.config.zero_experts = zero;
          const Tensor real = c.poisoned(DType::i32, r.expert.shape());
          c.stream().part_choices(real, c.poisoned(DType::f32, r.expert.shape()), c.poisoned(DType::i32, {zero}),
                                  r.expert, with_zero.config);
          const Planned whole = run_plan(c, real, r.weight, q), part = run_plan(c, real, r.weight, with_zero);
          const auto first = [&](const Tensor& t, std::int64_t n) {
            Values values = c.values_of(t);
            values.resize(static_cast<std::size_t>(n));
            return values;
          };
          c.expect("row", part.row, c.values_of(whole.row), 0);
          c.expect("source", part.source, c.values_of(whole.source), 0);
          c.expect("count", part.count, first(whole.count, experts), 0);
          c.expect("dropped", part.dropped, first(whole.dropped, experts), 0);
          c.expect("offset", part.offset, first(whole.offset, experts + 1), 0);
        });
      }
    }
  }
}

}  // namespace
}  // namespace orthant::test::zero_experts_test
