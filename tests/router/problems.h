// The routing problems that the tests run over, and the router's operations called on them.
#pragma once

#include <string>
#include <vector>

#include <orthant/gate.h>
#include <orthant/settings.h>

#include "tests/router/oracle.h"

namespace orthant::test {

using oracle::Kind;
using oracle::Problem;

inline Problem problem(Kind kind, std::int64_t experts, std::int64_t top_k, std::int64_t groups,
                       std::int64_t group_tokens, std::int64_t padding_every = 0) {
  Problem q;
  q.kind = kind;
  constexpr const char* names[] = {"switch", "gshard", "topk", "expert_choice"};
  Settings settings;
  settings.moe.router = names[static_cast<int>(kind)];
  q.config = gate_of(settings).config(settings);
  q.config.experts = experts;
  q.config.top_k = top_k;
  q.config.group_tokens = group_tokens;
  q.tokens = groups * group_tokens;
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    q.valid.push_back(padding_every > 0 && t % padding_every == padding_every - 1 ? 0 : 1);
    q.token.push_back(static_cast<double>(1000 + 7 * t));
  }
  return q;
}

inline Problem with_capacity(Problem q, std::int64_t numerator, std::int64_t denominator,
                             DropPolicy policy = DropPolicy::position) {
  q.numerator = numerator;
  q.denominator = denominator;
  q.config.capacity_factor = static_cast<double>(numerator) / static_cast<double>(denominator);
  q.config.drop_policy = policy;
  return q;
}

inline Problem by_sigmoid(Problem q) {
  q.config.score = ScoreKind::sigmoid;
  return q;
}

inline std::vector<Problem> joined(std::vector<Problem> all, const std::vector<Problem>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Every gate, with and without padding, from no token at all to several groups.
inline std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const std::int64_t padding : {0, 3}) {
    all.push_back(problem(Kind::switch_, 5, 1, 3, 17, padding));
    all.push_back(problem(Kind::switch_, 1, 1, 2, 4, padding));
    all.push_back(problem(Kind::gshard, 6, 2, 4, 16, padding));
    all.push_back(problem(Kind::gshard, 2, 2, 1, 9, padding));
    all.push_back(problem(Kind::topk, 8, 2, 3, 20, padding));
    all.push_back(problem(Kind::topk, 4, 4, 2, 6, padding));
    all.push_back(problem(Kind::topk, 67, 3, 2, 5, padding));  // fewer tokens than experts
    all.push_back(problem(Kind::topk, 8, 1, 1, 1, padding));   // one token
    all.push_back(problem(Kind::topk, 8, 2, 0, 16, padding));  // no token
    all.push_back(problem(Kind::topk, 8, 3, 2, 16, padding));
    all.back().config.normalize_weights = false;
    all.push_back(with_capacity(problem(Kind::expert_choice, 5, 5, 3, 17, padding), 5, 4));
    all.push_back(with_capacity(problem(Kind::expert_choice, 67, 67, 2, 5, padding), 2, 1));  // above max_top_k
    all.push_back(with_capacity(problem(Kind::expert_choice, 4, 4, 2, 6, padding), 100, 1));
  }
  for (const bool normalize : {true, false}) {
    all.push_back(by_sigmoid(problem(Kind::topk, 8, 3, 3, 17, 4)));
    all.back().config.normalize_weights = normalize;
  }
  all.push_back(by_sigmoid(problem(Kind::topk, 70, 8, 1, 6)));
  all.push_back(by_sigmoid(problem(Kind::topk, 5, 1, 2, 7)));
  all.push_back(with_capacity(by_sigmoid(problem(Kind::expert_choice, 5, 5, 3, 17, 4)), 5, 4));
  all.push_back(with_capacity(by_sigmoid(problem(Kind::expert_choice, 1, 1, 2, 30, 7)), 1, 2));  // Mixture of Depths
  all.push_back(with_capacity(problem(Kind::expert_choice, 4, 4, 2, 3, 1), 1, 1));               // padding only
  all.push_back(with_capacity(problem(Kind::expert_choice, 4, 4, 0, 3), 1, 1));                  // no token
  all.push_back(problem(Kind::topk, 8, 2, 2, 4, 1));                                             // padding only
  return all;
}

// Sizes at which devices change their ways: tokens around multiples of a block's, choices around a tile's, few experts
// and many, more choices than lanes, one group and many, nothing but padding.
inline std::vector<Problem> block_boundaries() {
  std::vector<Problem> all = {problem(Kind::topk, 1, 1, 1, 63),
                              problem(Kind::topk, 3, 2, 1, 64),
                              problem(Kind::topk, 9, 8, 1, 65, 5),
                              problem(Kind::topk, 64, 8, 1, 257, 7),
                              problem(Kind::topk, 64, 16, 2, 129),
                              problem(Kind::topk, 160, 8, 2, 64, 3),
                              problem(Kind::topk, 257, 16, 3, 65),
                              problem(Kind::topk, 600, 2, 1, 9, 4),
                              problem(Kind::topk, 1024, 64, 1, 5),
                              problem(Kind::topk, 3, 1, 1, 2049),
                              problem(Kind::topk, 20, 2, 100, 3),
                              problem(Kind::topk, 64, 2, 3, 65, 1),
                              by_sigmoid(problem(Kind::topk, 160, 8, 1, 66, 6)),
                              problem(Kind::gshard, 33, 2, 2, 70, 4),
                              problem(Kind::switch_, 128, 1, 2, 100)};
  all.push_back(with_capacity(problem(Kind::expert_choice, 3, 3, 2, 300, 5), 3, 2));
  all.push_back(with_capacity(by_sigmoid(problem(Kind::expert_choice, 1, 1, 2, 600, 5)), 1, 8));
  all.push_back(with_capacity(problem(Kind::expert_choice, 160, 160, 1, 70), 2, 1));
  return all;
}

// The same for seats, which devices give expert by expert and group by group: choices for one expert of a group around
// those that a block looks at at once, more groups than a warp has lanes, more experts than a block has threads.
inline std::vector<Problem> seat_boundaries() {
  return {problem(Kind::topk, 1, 1, 1, 63), problem(Kind::topk, 2, 1, 1, 700, 5),  // more than 256 choices, and
                                                                                   // seats, for one expert
          problem(Kind::topk, 3, 2, 1, 300, 5), problem(Kind::gshard, 3, 2, 2, 257), problem(Kind::topk, 2, 1, 67, 3),
          problem(Kind::switch_, 300, 1, 1, 40), problem(Kind::topk, 600, 2, 1, 9, 4)};
}

// More experts than a warp holds in registers, where tokens choose: every gate, one part of a group's tokens and two.
inline std::vector<Problem> long_rows() {
  return {problem(Kind::switch_, 2048, 1, 2, 3),  problem(Kind::gshard, 1030, 2, 1, 5, 4),
          problem(Kind::topk, 1025, 8, 2, 2),     problem(Kind::topk, 2048, 64, 1, 1),
          problem(Kind::topk, 1030, 3, 1, 70, 6), by_sigmoid(problem(Kind::topk, 1030, 8, 1, 3))};
}

struct Routed {
  Tensor logits, valid, token;
  Tensor expert, weight, lse, chosen, share;
};

inline Routed run_gate(OpContext& c, const Input& logits, const Problem& q) {
  const std::int64_t t = q.tokens, e = q.config.experts, k = q.config.top_k;
  Routed r;
  r.logits = logits.tensor;
  r.valid = c.input(DType::u8, {t}, q.valid).tensor;
  r.token = c.input(DType::i64, {t}, q.token).tensor;
  r.expert = c.poisoned(DType::i32, {t, k});
  r.weight = c.poisoned(DType::f32, {t, k});
  r.lse = c.poisoned(DType::f32, {t});
  r.chosen = c.poisoned(DType::i32, {q.groups(), e});
  r.share = c.poisoned(DType::f64, {q.groups(), e});
  c.stream().gate(r.expert, r.weight, r.lse, r.chosen, r.share, r.logits, r.valid, r.token, q.key, q.config);
  return r;
}

struct Planned {
  Tensor row, source, count, dropped, offset;
  std::int64_t rows = 0;
};

inline Planned run_plan(OpContext& c, const Tensor& expert, const Tensor& weight, const Problem& q) {
  const std::int64_t t = q.tokens, e = q.config.computing(), k = q.config.top_k;
  Planned p;
  p.row = c.poisoned(DType::i32, {t, k});
  p.source = c.poisoned(DType::i32, {q.config.rows_per_expert > 0 ? e * q.config.rows_per_expert : t * k, 1});
  p.count = c.poisoned(DType::i32, {e});
  p.dropped = c.poisoned(DType::i32, {e});
  p.offset = c.poisoned(DType::i32, {e + 1});
  c.stream().dispatch_plan(p.row, p.source, p.count, p.dropped, p.offset, expert, weight,
                           c.input(DType::u8, {t}, q.valid).tensor, q.config);
  for (const double n : c.values_of(p.count)) {
    p.rows += static_cast<std::int64_t>(n);
  }
  return p;
}

}  // namespace orthant::test
