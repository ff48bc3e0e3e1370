// What the operations compute, written plainly in fp64 from their definitions. Slow, and apart from the kernels.
#pragma once

#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/op_harness.h"

namespace orthant::test::oracle {

inline double& at(Values& x, std::int64_t i) {
  return x[i];
}
inline double at(const Values& x, std::int64_t i) {
  return x[i];
}

// y [t, d]; b empty: no bias.
inline Values norm(const Values& x, const Values& w, const Values& b, std::int64_t rows, std::int64_t d, NormKind kind,
                   double eps) {
  Values y(x.size());
  for (std::int64_t t = 0; t < rows; ++t) {
    double mean = 0, variance = 0;
    for (std::int64_t j = 0; j < d && kind == NormKind::layernorm; ++j) {
      mean += at(x, t * d + j) / static_cast<double>(d);
    }
    for (std::int64_t j = 0; j < d; ++j) {
      variance += std::pow(at(x, t * d + j) - mean, 2) / static_cast<double>(d);
    }
    for (std::int64_t j = 0; j < d; ++j) {
      at(y, t * d + j) = (at(x, t * d + j) - mean) / std::sqrt(variance + eps) * at(w, j) + (b.empty() ? 0 : at(b, j));
    }
  }
  return y;
}

inline double activate(double x, Activation kind) {
  switch (kind) {
    case Activation::relu: return std::max(x, 0.0);
    case Activation::gelu:
    case Activation::geglu:  // of the gate
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::swiglu: return x / (1 + std::exp(-x));  // of the gate
    case Activation::clamped_swiglu: return std::min(x, 7.0) / (1 + std::exp(-1.702 * std::min(x, 7.0)));
    case Activation::tanh: return std::tanh(x);
  }
  return 0;
}

// What a gate is multiplied by.
inline double gated_by(double up, Activation kind) {
  return kind == Activation::clamped_swiglu ? std::max(-7.0, std::min(up, 7.0)) + 1 : up;
}

// a [rows, f].
inline Values activation(const Values& h, std::int64_t rows, std::int64_t f, Activation kind) {
  Values a(static_cast<std::size_t>(rows * f));
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t j = 0; j < f; ++j) {
      at(a, t * f + j) = is_gated(kind)
                             ? activate(at(h, t * 2 * f + j), kind) * gated_by(at(h, t * 2 * f + f + j), kind)
                             : activate(at(h, t * f + j), kind);
    }
  }
  return a;
}

// -log softmax(row)[label].
inline double cross_entropy(const double* logits, std::int64_t v, std::int64_t label) {
  const double top = *std::max_element(logits, logits + v);
  double sum = 0;
  for (std::int64_t j = 0; j < v; ++j) {
    sum += std::exp(logits[j] - top);
  }
  return std::log(sum) + top - logits[label];
}

// Rotation of one head at a position: as multiplication of pairs by magnitude e^(i angle).
inline void rotate(double* head, const RotaryShape& s, double position) {
  const std::int64_t pairs = (s.head_dim - s.plain) / 2;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double own = 1 / std::pow(s.theta, static_cast<double>(i) / static_cast<double>(pairs));
    const double share = s.scaling.at_zero + s.scaling.by_frequency * own + s.scaling.by_pair * static_cast<double>(i);
    const double kept = std::min(1.0, std::max(0.0, share));
    const double angle = position * (kept * own + (1 - kept) * own / s.scaling.factor);
    double* turned = head + (s.plain_last ? 0 : s.plain);
    double &re = turned[s.interleaved ? 2 * i : i], &im = turned[s.interleaved ? 2 * i + 1 : i + pairs];
    const double x = re, y = im;
    re = s.scaling.magnitude * (x * std::cos(angle) - y * std::sin(angle));
    im = s.scaling.magnitude * (x * std::sin(angle) + y * std::cos(angle));
  }
}

// Attention with whole rows of scores, causal; first empty: all 0. first [2, T]: each token sees [first, last]. lse may
// be null.
inline Values attention(const Values& q, const Values& k, const Values& v, const Values& first, const AttentionShape& s,
                        Values* lse) {
  const std::int64_t c = s.head_dim, group = s.heads / s.kv_heads;
  Values o(q.size(), 0.0);
  if (lse != nullptr) {
    lse->assign(s.batch * s.heads * s.positions, 0.0);
  }
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.positions; ++i) {
        const std::int64_t t = b * s.positions + i;
        const std::int64_t tokens = s.batch * s.positions, given = static_cast<std::int64_t>(first.size());
        const std::int64_t begin = first.empty() ? 0 : static_cast<std::int64_t>(at(first, t));
        const std::int64_t last = given > tokens ? static_cast<std::int64_t>(at(first, tokens + t)) : i;
        Values score;
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t j = begin; j <= last; ++j) {
          double dot = 0;
          for (std::int64_t e = 0; e < c; ++e) {
            dot += at(q, (t * s.heads + h) * c + e) * at(k, ((b * s.positions + j) * s.kv_heads + h / group) * c + e);
          }
          const double x = dot / std::sqrt(static_cast<double>(c)), cap = s.softcap;
          score.push_back(cap == 0 ? x : cap * std::tanh(x / cap));
          top = std::max(top, score.back());
        }
        for (const double x : score) {
          sum += std::exp(x - top);
        }
        for (std::int64_t j = begin; j <= last; ++j) {
          const double p = std::exp(at(score, j - begin) - top) / sum;
          for (std::int64_t e = 0; e < c; ++e) {
            at(o, (t * s.heads + h) * c + e) += p * at(v, ((b * s.positions + j) * s.kv_heads + h / group) * c + e);
          }
        }
        if (lse != nullptr) {
          at(*lse, (b * s.heads + h) * s.positions + i) = std::log(sum) + top;
        }
      }
    }
  }
  return o;
}

}  // namespace orthant::test::oracle
