// What the router must do, written plainly in fp64 from its definition: for each choice by itself, without running
// counts, scans or shared steps. Slow.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <orthant/ops.h>
#include <orthant/random.h>

#include "tests/support/op_harness.h"

namespace orthant::test::oracle {

// The gates, as their papers define them; what a gate asks of the operations is GateConfig's business.
enum class Kind { switch_, gshard, topk, expert_choice };

struct Problem {
  Kind kind = Kind::topk;
  GateConfig config;  // capacity_factor is numerator / denominator
  std::int64_t tokens = 0;
  std::int64_t numerator = 0, denominator = 1;
  Values valid, token;
  RandomKey key{.seed = 3, .purpose = Purpose::second_expert, .site = 1, .step = 5};

  std::int64_t groups() const { return tokens / config.group_tokens; }
  std::int64_t group_of(std::int64_t t) const { return t / config.group_tokens; }
  std::int64_t valid_in(std::int64_t group) const {
    std::int64_t n = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      n += group_of(t) == group && valid[t] != 0 ? 1 : 0;
    }
    return n;
  }
};

struct Gate {
  Values expert, weight, lse, chosen, share;
  Values ranked;  // [T, K] the experts by logit, kept or not
};

inline Values softmax(const Values& x) {
  const double top = *std::max_element(x.begin(), x.end());
  Values p;
  double sum = 0;
  for (const double v : x) {
    sum += std::exp(v - top);
  }
  for (const double v : x) {
    p.push_back(std::exp(v - top) / sum);
  }
  return p;
}

inline Values row_of(const Values& m, std::int64_t row, std::int64_t columns) {
  return {m.begin() + row * columns, m.begin() + (row + 1) * columns};
}

inline Values scores(const Values& x, const GateConfig& c) {
  if (c.score == ScoreKind::softmax) {
    return softmax(x);
  }
  Values s;
  for (const double v : x) {
    s.push_back(1 / (1 + std::exp(-v)));
  }
  return s;
}

// Each expert's part of a token's scores.
inline Values shares(const Values& x, const GateConfig& c) {
  Values s = scores(x, c);
  const double sum = std::accumulate(s.begin(), s.end(), 0.0);
  for (double& v : s) {
    v /= sum;
  }
  return s;
}

inline double logsumexp(const Values& x) {
  double sum = 0;
  for (const double v : x) {
    sum += std::exp(v);
  }
  return std::log(sum);
}

// lse [T] and share [G, E] of valid tokens; 0 for the others.
inline void add_lse_and_share(Gate& out, const Values& logits, const Problem& q) {
  const std::int64_t experts = q.config.experts;
  out.share.assign(q.groups() * experts, 0);
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    const Values x = row_of(logits, t, experts);
    const bool is_valid = q.valid[t] != 0;
    out.lse.push_back(is_valid ? logsumexp(x) : 0);
    const Values part = shares(x, q.config);
    for (std::int64_t e = 0; is_valid && e < experts; ++e) {
      out.share[q.group_of(t) * experts + e] += part[e];
    }
  }
}

// Weights of the ranked experts for logits x, before gshard's lottery.
inline Values weights(const Values& x, const Values& ranked, const Problem& q) {
  const GateConfig& c = q.config;
  const Values p = scores(x, c);
  Values w;
  for (const double e : ranked) {
    w.push_back(p[e]);
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  const bool to_one = q.kind == Kind::gshard || (q.kind == Kind::topk && c.normalize_weights);
  for (double& v : w) {
    v /= to_one ? sum : 1;
  }
  return w;
}

// The smallest whole number >= 1 that is >= factor * K * valid / E, K = 1 where the experts choose.
inline std::int64_t capacity(const Problem& q, std::int64_t valid) {
  std::int64_t seats = 1;
  const std::int64_t choices = q.kind == Kind::expert_choice ? 1 : q.config.top_k;
  while (seats * q.config.experts * q.denominator < q.numerator * choices * valid) {
    ++seats;
  }
  return seats;
}

// Expert e takes token t if fewer than the capacity of the group's other tokens score higher (or as high and lower).
inline Gate gate_of_experts(const Values& logits, const Problem& q) {
  const std::int64_t experts = q.config.experts;
  Gate out;
  add_lse_and_share(out, logits, q);
  out.chosen.assign(q.groups() * experts, 0);
  std::vector<Values> p;
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    p.push_back(q.valid[t] != 0 ? scores(row_of(logits, t, experts), q.config)
                                : Values(static_cast<std::size_t>(experts), 0));
  }
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    const std::int64_t group = q.group_of(t);
    for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
      const double own = p[t][e];
      std::int64_t before = 0;
      for (std::int64_t u = group * q.config.group_tokens; u < (group + 1) * q.config.group_tokens; ++u) {
        const double other = p[u][e];
        before += q.valid[u] != 0 && (other > own || (other == own && u < t)) ? 1 : 0;
      }
      const bool taken = q.valid[t] != 0 && before < capacity(q, q.valid_in(group));
      out.expert.push_back(taken ? static_cast<double>(e) : -1);
      out.weight.push_back(taken ? own : 0);
      out.ranked.push_back(static_cast<double>(e));
      out.chosen[static_cast<std::size_t>(group * experts) + e] += taken ? 1 : 0;
    }
  }
  return out;
}

inline Gate gate(const Values& logits, const Problem& q) {
  if (q.kind == Kind::expert_choice) {
    return gate_of_experts(logits, q);
  }
  const GateConfig& c = q.config;
  Gate out;
  add_lse_and_share(out, logits, q);
  out.chosen.assign(q.groups() * c.experts, 0);
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    if (q.valid[t] == 0) {
      out.expert.insert(out.expert.end(), static_cast<std::size_t>(c.top_k), -1);
      out.weight.insert(out.weight.end(), static_cast<std::size_t>(c.top_k), 0);
      out.ranked.insert(out.ranked.end(), static_cast<std::size_t>(c.top_k), 0);
      continue;
    }
    const Values x = row_of(logits, t, c.experts);
    Values order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](double a, double b) { return x[a] > x[b]; });
    order.resize(c.top_k);
    Values w = weights(x, order, q);
    out.ranked.insert(out.ranked.end(), order.begin(), order.end());
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (q.kind == Kind::topk || k == 0) {
        out.chosen[static_cast<std::size_t>(q.group_of(t) * c.experts) + static_cast<std::size_t>(order[k])] += 1;
      }
    }
    const std::uint64_t token = static_cast<std::uint64_t>(q.token[t]);
    if (q.kind == Kind::gshard && uniform(q.key, token) >= std::min(1.0, 2 * w[1])) {
      order[1] = -1;
      w[1] = 0;
    }
    out.expert.insert(out.expert.end(), order.begin(), order.end());
    out.weight.insert(out.weight.end(), w.begin(), w.end());
  }
  return out;
}

struct Plan {
  Values row, source, count, dropped;
};

inline Plan plan(const Values& expert, const Values& weight, const Problem& q) {
  const GateConfig& c = q.config;
  const std::int64_t choices = q.tokens * c.top_k;
  const auto at = [](const Values& v, std::int64_t i) { return v[i]; };
  // Whether choice b is seated before choice a.
  const auto before = [&](std::int64_t b, std::int64_t a) {
    const std::int64_t kb = b % c.top_k, ka = a % c.top_k, tb = b / c.top_k, ta = a / c.top_k;
    if (c.drop_policy == DropPolicy::position) {
      return kb < ka || (kb == ka && tb < ta);
    }
    if (q.kind == Kind::gshard && kb != ka) {
      return kb < ka;
    }
    const double wb = at(weight, b), wa = at(weight, a);
    return wb > wa || (wb == wa && (tb < ta || (tb == ta && kb < ka)));
  };
  std::vector<bool> kept(choices);
  Plan out;
  out.count.assign(c.experts, 0);
  out.dropped = out.count;
  for (std::int64_t a = 0; a < choices; ++a) {
    const std::int64_t group = q.group_of(a / c.top_k);
    if (at(expert, a) < 0) {
      continue;
    }
    std::int64_t earlier = 0;
    const std::int64_t of_group = c.group_tokens * c.top_k;
    for (std::int64_t b = group * of_group; b < (group + 1) * of_group; ++b) {
      earlier += b != a && at(expert, b) == at(expert, a) && before(b, a) ? 1 : 0;
    }
    const bool fits = q.numerator == 0 || earlier < capacity(q, q.valid_in(group));
    kept[a] = fits;
    (fits ? out.count : out.dropped)[at(expert, a)] += 1;
  }
  out.row.assign(choices, -1);
  for (std::int64_t e = 0; e < c.experts; ++e) {
    for (std::int64_t a = 0; a < choices; ++a) {
      if (kept[a] && at(expert, a) == static_cast<double>(e)) {
        out.row[a] = static_cast<double>(out.source.size());
        out.source.push_back(static_cast<double>(a));
      }
    }
  }
  return out;
}

// sum over groups of valid * E * sum_e f_e P_e, with f from `chosen`.
inline double balance_loss(const Values& logits, const Values& chosen, const Problem& q) {
  const GateConfig& c = q.config;
  double total = 0;
  for (std::int64_t g = 0; g < q.groups(); ++g) {
    const double valid = static_cast<double>(q.valid_in(g));
    double counted = q.kind == Kind::topk ? static_cast<double>(c.top_k) : 1;
    if (q.kind == Kind::expert_choice) {  // the mean number of experts of a token
      const Values row = row_of(chosen, g, c.experts);
      counted = std::accumulate(row.begin(), row.end(), 0.0) / valid;
    }
    Values mean(static_cast<std::size_t>(c.experts), 0);
    for (std::int64_t t = g * c.group_tokens; t < (g + 1) * c.group_tokens; ++t) {
      if (q.valid[t] != 0) {
        const Values p = shares(row_of(logits, t, c.experts), c);
        for (std::size_t e = 0; e < p.size(); ++e) {
          mean[e] += p[e] / valid;
        }
      }
    }
    double loss = 0;
    for (std::size_t e = 0; valid > 0 && e < mean.size(); ++e) {
      const double f = chosen[static_cast<std::size_t>(g * c.experts) + e] / (valid * counted);
      loss += static_cast<double>(c.experts) * f * mean[e];
    }
    total += valid * loss;
  }
  return total;
}

inline double z_loss(const Values& logits, const Problem& q) {
  double total = 0;
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    if (q.valid[t] != 0) {
      const double lse = logsumexp(row_of(logits, t, q.config.experts));
      total += lse * lse;
    }
  }
  return total;
}

}  // namespace orthant::test::oracle
