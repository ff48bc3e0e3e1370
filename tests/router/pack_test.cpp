// pack and combine: values, adjoints under drops and with empty experts, and the router's gradient through them.
#include <gtest/gtest.h>

#include "tests/router/problems.h"

namespace orthant::test::pack_test {
namespace {

// Problems with drops, empty experts, no token, one token and padding only; width d.
std::vector<Problem> dispatches() {
  return {with_capacity(problem(Kind::switch_, 4, 1, 3, 16, 5), 1, 2),
          with_capacity(problem(Kind::gshard, 6, 2, 4, 20), 3, 4, DropPolicy::probability),
          problem(Kind::topk, 64, 2, 2, 10),
          with_capacity(problem(Kind::topk, 8, 3, 2, 33, 7), 1, 1),
          with_capacity(problem(Kind::expert_choice, 6, 6, 2, 15, 4), 3, 2),
          by_sigmoid(with_capacity(problem(Kind::topk, 8, 3, 2, 20, 6), 3, 2, DropPolicy::probability)),
          problem(Kind::topk, 8, 2, 0, 4),
          problem(Kind::topk, 8, 2, 1, 1),
          problem(Kind::topk, 8, 2, 1, 4, 1)};
}
constexpr std::int64_t d = 37;

struct Routing {
  Routed gate;
  Planned plan;
  Values row, source, weight;
};

Routing route(OpContext& c, const Problem& q) {
  Routing s;
  s.gate = run_gate(c, c.normal(DType::f32, {q.tokens, q.config.experts}, 1.0), q);
  s.plan = run_plan(c, s.gate.expert, s.gate.weight, q);
  s.row = c.values_of(s.plan.row);
  s.weight = c.values_of(s.gate.weight);
  // By the definition of a packed row, from `row` alone.
  s.source.assign(static_cast<std::size_t>(q.config.rows_per_expert > 0 ? s.plan.source.elements() : s.plan.rows), -1);
  for (std::size_t choice = 0; choice < s.row.size(); ++choice) {
    if (s.row[choice] >= 0) {
      s.source[s.row[choice]] = static_cast<double>(choice);
    }
  }
  return s;
}

// A row at which devices read and write 16 bytes at a time, more than a warp does at once, beside d; and very narrow
// ones.
TEST(Pack, AndCombineAtOtherWidths) {
  const Problem q = with_capacity(problem(Kind::topk, 8, 3, 2, 9, 7), 1, 1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t width : {1, 3, 16, 24, 1024, 1032, 2056}) {
      on_every_device([&](OpContext& c) {
        const Routing s = route(c, q);
        const std::size_t columns = static_cast<std::size_t>(width), k_count = 3;
        const Input x = c.normal(dtype, {q.tokens, width}, 1.0), rows = c.normal(dtype, {s.plan.rows, width}, 1.0);
        const Tensor packed = c.poisoned(dtype, {s.plan.rows, width}), drows = c.poisoned(dtype, {s.plan.rows, width});
        const Tensor y = c.poisoned(dtype, {q.tokens, width}), dweight = c.poisoned(DType::f32, {q.tokens, 3});
        c.stream().pack(packed, x.tensor, s.plan.row, s.plan.source);
        c.stream().combine(y, rows.tensor, s.plan.row, s.gate.weight, false);
        c.stream().combine_backward(drows, dweight, x.tensor, rows.tensor, s.plan.row, s.plan.source, s.gate.weight);
        Values want_packed(rows.values.size()), want_drows(rows.values.size()), want_y(x.values.size(), 0);
        Values want_weight(s.row.size(), 0);
        for (std::size_t choice = 0; choice < s.row.size(); ++choice) {
          for (std::size_t j = 0; s.row[choice] >= 0 && j < columns; ++j) {
            const std::size_t packed_at = static_cast<std::size_t>(s.row[choice]) * columns + j;
            const std::size_t token_at = choice / k_count * columns + j;
            want_packed[packed_at] = x.values[token_at];
            want_drows[packed_at] = s.weight[choice] * x.values[token_at];
            want_y[token_at] += s.weight[choice] * rows.values[packed_at];
            want_weight[choice] += x.values[token_at] * rows.values[packed_at];
          }
        }
        c.expect("rows", packed, want_packed, 0);
        c.expect("y", y, want_y, dtype == DType::f32 ? 1e-6 : 4e-3);
        c.expect("drows", drows, want_drows, dtype == DType::f32 ? 1e-6 : 4e-3);
        c.expect("dweight", dweight, want_weight, 2e-6);
      });
    }
  }
}

std::size_t index(double row, std::size_t column) {
  return static_cast<std::size_t>(row) * d + column;
}

TEST(Pack, CopiesTokenRows) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Problem& q : dispatches()) {
      on_every_device([&](OpContext& c) {
        const Routing s = route(c, q);
        const Input x = c.normal(dtype, {q.tokens, d}, 1.0);
        const Tensor rows = c.poisoned(dtype, {s.plan.rows, d});
        c.stream().pack(rows, x.tensor, s.plan.row, s.plan.source);
        Values want;
        for (const double choice : s.source) {
          const Values row = oracle::row_of(x.values, static_cast<std::int64_t>(choice) / q.config.top_k, d);
          want.insert(want.end(), row.begin(), row.end());
        }
        c.expect("rows", rows, want, 0);
      });
    }
  }
}

// Rows that hold no choice become zero, in both directions.
TEST(Pack, WritesZeroWhereNothingStands) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (Problem q : dispatches()) {
      on_every_device([&](OpContext& c) {
        q.config.rows_per_expert = q.tokens + 1;
        const Routing s = route(c, q);
        const std::int64_t room = s.plan.source.elements();
        const Values source = c.values_of(s.plan.source);
        const Input x = c.normal(dtype, {q.tokens, d}, 1.0), old = c.normal(dtype, {room, d}, 1.0);
        const Tensor rows = c.poisoned(dtype, {room, d}), drows = c.poisoned(dtype, {room, d});
        const Tensor dweight = c.poisoned(DType::f32, {q.tokens, q.config.top_k});
        c.stream().pack(rows, x.tensor, s.plan.row, s.plan.source);
        c.stream().combine_backward(drows, dweight, x.tensor, old.tensor, s.plan.row, s.plan.source, s.gate.weight);
        Values copied, weighted;
        for (const double choice : source) {
          for (std::int64_t j = 0; j < d; ++j) {
            const std::size_t at = static_cast<std::size_t>(choice);
            const std::size_t token = choice < 0 ? 0 : at / static_cast<std::size_t>(q.config.top_k);
            copied.push_back(choice < 0 ? 0 : x.values[token * d + static_cast<std::size_t>(j)]);
            weighted.push_back(choice < 0 ? 0 : s.weight[at] * copied.back());
          }
        }
        c.expect("rows", rows, copied, 0);
        c.expect("drows", drows, weighted, dtype == DType::f32 ? 1e-6 : 4e-3);
      });
    }
  }
}

TEST(Pack, BackwardOverwritesUnlessItAdds) {
  for (const Problem& q : dispatches()) {
    on_every_device([&](OpContext& c) {
      const Routing s = route(c, q);
      const Input g = c.normal(DType::f32, {s.plan.rows, d}, 1.0);
      const Tensor zero = c.constant(DType::f32, {q.tokens, d}, 0).tensor, dx = c.poisoned(DType::f32, {q.tokens, d});
      c.stream().pack_backward(zero, g.tensor, s.plan.row, true);
      c.stream().pack_backward(dx, g.tensor, s.plan.row, false);
      c.expect("dx", dx, c.values_of(zero), 0);
    });
  }
}

TEST(Pack, BackwardIsTheAdjointAndAdds) {
  for (const Problem& q : dispatches()) {
    on_every_device([&](OpContext& c) {
      const Routing s = route(c, q);
      const Input x = c.normal(DType::f32, {q.tokens, d}, 1.0), g = c.normal(DType::f32, {s.plan.rows, d}, 1.0);
      const Tensor rows = c.poisoned(DType::f32, {s.plan.rows, d});
      c.stream().pack(rows, x.tensor, s.plan.row, s.plan.source);
      const Input before = c.normal(DType::f32, {q.tokens, d}, 1.0);
      const Tensor dx = c.input(DType::f32, {q.tokens, d}, before.values).tensor;
      c.stream().pack_backward(dx, g.tensor, s.plan.row, true);
      Values change = c.values_of(dx);
      c.same_bits("dx", dx);
      for (std::size_t i = 0; i < change.size(); ++i) {
        change[i] -= before.values[i];
      }
      EXPECT_NEAR(inner(c.values_of(rows), g.values), inner(x.values, change), 1e-4);
    });
  }
}

TEST(Combine, IsTheWeightedSumInOrder) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Problem& q : dispatches()) {
      for (const bool accumulate : {false, true}) {
        on_every_device([&](OpContext& c) {
          const Routing s = route(c, q);
          const Input rows = c.normal(dtype, {s.plan.rows, d}, 1.0), before = c.normal(dtype, {q.tokens, d}, 1.0);
          const Tensor y = accumulate ? before.tensor : c.poisoned(dtype, {q.tokens, d});
          c.stream().combine(y, rows.tensor, s.plan.row, s.gate.weight, accumulate);
          Values want(static_cast<std::size_t>(q.tokens * d), 0);
          for (std::size_t i = 0; accumulate && i < want.size(); ++i) {
            want[i] = before.values[i];
          }
          for (std::size_t choice = 0; choice < s.row.size(); ++choice) {
            for (std::size_t j = 0; s.row[choice] >= 0 && j < d; ++j) {
              want[choice / static_cast<std::size_t>(q.config.top_k) * d + j] +=
                  s.weight[choice] * rows.values[index(s.row[choice], j)];
            }
          }
          c.expect("y", y, want, dtype == DType::f32 ? 1e-6 : 4e-3);
        });
      }
    }
  }
}

TEST(Combine, BackwardIsTheDefinition) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Problem& q : dispatches()) {
      on_every_device([&](OpContext& c) {
        const Routing s = route(c, q);
        const Input rows = c.normal(dtype, {s.plan.rows, d}, 1.0), dy = c.normal(dtype, {q.tokens, d}, 1.0);
        const Tensor drows = c.poisoned(dtype, {s.plan.rows, d}),
                     dweight = c.poisoned(DType::f32, s.gate.weight.shape());
        c.stream().combine_backward(drows, dweight, dy.tensor, rows.tensor, s.plan.row, s.plan.source, s.gate.weight);
        Values want_rows(static_cast<std::size_t>(s.plan.rows * d)), want_weight(s.row.size(), 0);
        for (std::size_t choice = 0; choice < s.row.size(); ++choice) {
          const double t = static_cast<double>(choice / static_cast<std::size_t>(q.config.top_k));
          for (std::size_t j = 0; s.row[choice] >= 0 && j < d; ++j) {
            want_rows[index(s.row[choice], j)] = s.weight[choice] * dy.values[index(t, j)];
            want_weight[choice] += dy.values[index(t, j)] * rows.values[index(s.row[choice], j)];
          }
        }
        c.expect("drows", drows, want_rows, dtype == DType::f32 ? 1e-6 : 4e-3);
        c.expect("dweight", dweight, want_weight, 3e-6);
      });
    }
  }
}

TEST(Combine, BackwardIsTheAdjoint) {
  for (const Problem& q : dispatches()) {
    on_every_device([&](OpContext& c) {
      const Routing s = route(c, q);
      const Input rows = c.normal(DType::f32, {s.plan.rows, d}, 1.0), dy = c.normal(DType::f32, {q.tokens, d}, 1.0);
      const Tensor y = c.poisoned(DType::f32, {q.tokens, d}), drows = c.poisoned(DType::f32, {s.plan.rows, d});
      const Tensor dweight = c.poisoned(DType::f32, s.gate.weight.shape());
      c.stream().combine(y, rows.tensor, s.plan.row, s.gate.weight, false);
      c.stream().combine_backward(drows, dweight, dy.tensor, rows.tensor, s.plan.row, s.plan.source, s.gate.weight);
      // Linear in rows, and linear in weights: both adjoints give the same number.
      const double forward = inner(c.values_of(y), dy.values);
      EXPECT_NEAR(forward, inner(rows.values, c.values_of(drows)), 1e-4);
      EXPECT_NEAR(forward, inner(s.weight, c.values_of(dweight)), 1e-4);
    });
  }
}

// The whole way from logits to the layer's output: loss = <dy, combine(expert(pack(x)), gate(logits))>, expert e being
// a scaling by e + 1, whose definition the oracle takes per token.
TEST(Router, GradientThroughDispatchAndCombine) {
  for (const Problem& q : dispatches()) {
    on_every_device([&](OpContext& c) {
      const std::int64_t experts = q.config.experts, k_count = q.config.top_k;
      const Input logits = c.normal(DType::f32, {q.tokens, experts}, 1.0);
      const Input x = c.normal(DType::f32, {q.tokens, d}, 0.3), dy = c.normal(DType::f32, {q.tokens, d}, 0.3);
      const Routed r = run_gate(c, logits, q);
      const Planned p = run_plan(c, r.expert, r.weight, q);
      const Tensor rows = c.poisoned(DType::f32, {p.rows, d});
      c.stream().pack(rows, x.tensor, p.row, p.source);
      const Values count = c.values_of(p.count);
      std::int64_t begin = 0;
      for (std::int64_t e = 0; e < experts; ++e) {
        const std::int64_t n = static_cast<std::int64_t>(count[e]);
        c.stream().scale(rows.rows(begin, n), static_cast<float>(e + 1));
        begin += n;
      }
      const Tensor drows = c.poisoned(DType::f32, {p.rows, d}), dweight = c.poisoned(DType::f32, r.weight.shape());
      const Tensor dlogits = c.poisoned(DType::f32, logits.tensor.shape());
      c.stream().combine_backward(drows, dweight, dy.tensor, rows, p.row, p.source, r.weight);
      c.stream().gate_backward(dlogits, dweight, r.expert, r.lse, r.chosen, r.logits, r.valid, 0, 0, q.config);

      const oracle::Gate base = oracle::gate(logits.values, q);
      const oracle::Plan plan = oracle::plan(base.expert, base.weight, q);
      const auto loss = [&](const Values& l) {
        double sum = 0;
        for (std::int64_t t = 0; t < q.tokens; ++t) {
          const Values w = oracle::weights(oracle::row_of(l, t, experts), oracle::row_of(base.ranked, t, k_count), q);
          const double xy = inner(oracle::row_of(x.values, t, d), oracle::row_of(dy.values, t, d));
          for (std::int64_t k = 0; k < k_count; ++k) {
            const std::size_t choice = static_cast<std::size_t>(t * k_count + k);
            if (plan.row[choice] >= 0) {
              sum += w[k] * (base.expert[choice] + 1) * xy;
            }
          }
        }
        return sum;
      };
      c.expect("dlogits", dlogits, numeric_gradient(loss, logits.values), 2e-5);
    });
  }
}

}  // namespace
}  // namespace orthant::test::pack_test
