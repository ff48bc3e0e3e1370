// Multi-token prediction against its definition in fp64: a dense model, written out token by token. Losses, and the
// gradient of every parameter along a few directions, by central differences of the definition.
#include <gtest/gtest.h>
#include <orthant/random.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/support/experiment.h"

namespace orthant::mtp_reference_test {
namespace {

using test::experiment;
using test::FixedSource;
using test::OneRank;
using test::Overrides;

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;
using Weights = std::map<std::string, Vector>;

constexpr int vocabulary = 24, length = 7;

// One sequence as the definition has it: the documents that it is packed of.
using Documents = std::vector<std::vector<std::int32_t>>;

class Definition {
 public:
  Definition(const Settings& settings, const Weights& weights) : s_(settings), w_(weights) {}

  struct Losses {
    double main = 0;
    Vector depth;  // mean of each
    double total(const Settings& s) const {
      double sum = 0;
      for (const double loss : depth) {
        sum += loss / static_cast<double>(depth.size());
      }
      return main + s.train.mtp_weight * sum;
    }
  };

  // Tokens of each document: all but its last one are read, and all but its first one are asked for. The number of
  // positions before a document within its sequence says nothing: places restart.
  Losses losses(const Documents& documents) const {
    const std::size_t depths = static_cast<std::size_t>(s_.model.mtp_depth);
    Vector sum(depths + 1), count(depths + 1);
    for (const std::vector<std::int32_t>& t : documents) {
      const std::size_t n = t.size() - 1;
      Rows x;
      for (std::size_t i = 0; i < n; ++i) {
        x.push_back(plus(row("model.embed_tokens.weight", t[i]), row("model.embed_positions.weight", i)));
      }
      for (std::int64_t layer = 0; layer < s_.model.layers; ++layer) {
        x = block(x, "model.layers." + std::to_string(layer));
      }
      Rows h = normed(x, "model.norm");
      ask(h, t, 0, sum, count);
      for (std::size_t k = 1; k <= depths; ++k) {
        const std::string stem = "mtp." + std::to_string(k - 1);
        Rows z;
        for (std::size_t i = 0; i + k < t.size() && i < n; ++i) {  // E of a token that the document has
          Vector both = norm(row("model.embed_tokens.weight", t[i + k]), stem + ".enorm");
          const Vector before = norm(h[i], stem + ".hnorm");
          both.insert(both.end(), before.begin(), before.end());
          z.push_back(times(stem + ".eh_proj.weight", both));
        }
        h = normed(block(z, stem + ".block"), stem + ".norm");
        ask(h, t, k, sum, count);
      }
    }
    Losses losses{.main = sum[0] / count[0], .depth = {}};
    for (std::size_t k = 1; k <= depths; ++k) {
      losses.depth.push_back(sum[k] / count[k]);
    }
    return losses;
  }

 private:
  const Vector& at(const std::string& name) const { return w_.at(name); }
  Vector row(const std::string& table, std::size_t i) const {
    const std::size_t d = static_cast<std::size_t>(s_.model.d_model);
    const auto begin = at(table).begin() + static_cast<std::ptrdiff_t>(i * d);
    return {begin, begin + static_cast<std::ptrdiff_t>(d)};
  }
  static Vector plus(Vector a, const Vector& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] += b[i];
    }
    return a;
  }
  Vector times(const std::string& matrix, const Vector& x) const {
    const Vector& w = at(matrix);
    Vector y(w.size() / x.size());
    for (std::size_t r = 0; r < y.size(); ++r) {
      for (std::size_t c = 0; c < x.size(); ++c) {
        y[r] += w[r * x.size() + c] * x[c];
      }
    }
    return y;
  }
  Vector norm(Vector x, const std::string& stem) const {
    double squares = 0;
    for (const double v : x) {
      squares += v * v;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + s_.model.norm_eps);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= scale * at(stem + ".weight")[i];
    }
    return x;
  }
  Rows normed(Rows x, const std::string& stem) const {
    for (Vector& v : x) {
      v = norm(v, stem);
    }
    return x;
  }
  Rows block(Rows x, const std::string& stem) const {
    const Rows n = normed(x, stem + ".input_layernorm");
    Rows q, k, v;
    for (const Vector& one : n) {
      q.push_back(times(stem + ".self_attn.q_proj.weight", one));
      k.push_back(times(stem + ".self_attn.k_proj.weight", one));
      v.push_back(times(stem + ".self_attn.v_proj.weight", one));
    }
    const std::size_t d = static_cast<std::size_t>(s_.model.d_model);
    const std::size_t heads = static_cast<std::size_t>(s_.model.heads), c = d / heads;
    for (std::size_t i = 0; i < x.size(); ++i) {
      Vector o(d);
      for (std::size_t head = 0; head < heads; ++head) {
        Vector p(i + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          double score = 0;
          for (std::size_t e = head * c; e < (head + 1) * c; ++e) {
            score += q[i][e] * k[j][e];
          }
          p[j] = std::exp(score / std::sqrt(static_cast<double>(c)));
          sum += p[j];
        }
        for (std::size_t j = 0; j <= i; ++j) {
          for (std::size_t e = head * c; e < (head + 1) * c; ++e) {
            o[e] += p[j] / sum * v[j][e];
          }
        }
      }
      x[i] = plus(x[i], times(stem + ".self_attn.o_proj.weight", o));
    }
    for (Vector& one : x) {
      const Vector m = norm(one, stem + ".post_attention_layernorm");
      Vector gate = times(stem + ".mlp.gate_proj.weight", m);
      const Vector up = times(stem + ".mlp.up_proj.weight", m);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      }
      one = plus(one, times(stem + ".mlp.down_proj.weight", gate));
    }
    return x;
  }
  // h_i for the token k + 1 places on, where the document has it.
  void ask(const Rows& h, const std::vector<std::int32_t>& t, std::size_t k, Vector& sum, Vector& count) const {
    for (std::size_t i = 0; i + k + 1 < t.size(); ++i) {
      const Vector logits = times("lm_head.weight", h[i]);
      double all = 0;
      for (const double l : logits) {
        all += std::exp(l);
      }
      sum[k] += std::log(all) - logits[static_cast<std::size_t>(t[i + k + 1])];
      count[k] += 1;
    }
  }

  const Settings& s_;
  const Weights& w_;
};

// Rows of `length` positions, filled up with padding.
HostBatch packed(const std::vector<Documents>& rows) {
  HostBatch batch;
  batch.sequences = static_cast<std::int64_t>(rows.size());
  batch.positions = length;
  for (const Documents& documents : rows) {
    std::int32_t at = 0;
    for (const std::vector<std::int32_t>& t : documents) {
      const std::int32_t first = at;
      for (std::size_t i = 0; i + 1 < t.size(); ++i, ++at) {
        batch.token.push_back(t[i]);
        batch.label.push_back(t[i + 1]);
        batch.position.push_back(static_cast<std::int32_t>(i));
        batch.first.push_back(first);
        batch.valid.push_back(1);
      }
    }
    for (; at < length; ++at) {
      batch.token.push_back(0);
      batch.label.push_back(-1);
      batch.position.push_back(0);
      batch.first.push_back(at);
      batch.valid.push_back(0);
    }
  }
  for (std::size_t i = 0; i < batch.token.size(); ++i) {
    batch.index.push_back(static_cast<std::int64_t>(i));
  }
  return batch;
}

Vector direction(std::size_t n, std::uint32_t number) {
  Vector v(n);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    v[i] = static_cast<double>(normal({11, Purpose::test, number, 0}, i));
    squares += v[i] * v[i];
  }
  for (double& x : v) {
    x /= std::sqrt(squares);
  }
  return v;
}

void expect_definition(const Overrides& overrides, const std::vector<Documents>& rows) {
  const Config config = experiment(
      test::joined({"moe.experts=0", "model.layers=1", R"(model.positions="learned")", R"(model.activation="swiglu")",
                    "model.heads=2", "model.d_model=8", "model.d_ff=12", fmt::format("model.vocab_size={}", vocabulary),
                    "model.init_std=0.4", "train.mtp_weight=0.7", fmt::format("data.sequence_length={}", length),
                    fmt::format("batch.sequences={}", rows.size())},
                   overrides));
  const Settings& settings = config.settings;
  const FixedSource source(packed(rows), vocabulary);
  OneRank rank(config, &source);
  Weights weights;
  for (const std::string& name : rank->names()) {
    std::vector<float> w = rank->weight(name);
    if (name.find("norm") != std::string::npos) {  // ones would hide a norm that is left out or taken for another
      const Vector by = direction(w.size(), static_cast<std::uint32_t>(weights.size()) + 500);
      for (std::size_t i = 0; i < w.size(); ++i) {
        w[i] += static_cast<float>(by[i]);
      }
      rank->set_weight(name, w);
    }
    weights[name] = Vector(w.begin(), w.end());
  }
  Documents all;
  for (const Documents& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  const Definition::Losses expected = Definition(settings, weights).losses(all);
  const StepReport report = rank->trainer().gradients(0);
  double mean = 0;
  for (const double loss : expected.depth) {
    mean += loss / static_cast<double>(expected.depth.size());
  }
  EXPECT_NEAR(report.loss, expected.main, 1e-5);
  EXPECT_NEAR(report.figures.at("mtp_loss"), mean, 1e-5);
  std::uint32_t number = 0;
  for (const auto& [name, values] : weights) {
    const std::vector<float> gradient = rank->gradient(name);
    double apart = 0, norm = 0;
    for (int d = 0; d < 3; ++d) {
      const Vector v = direction(values.size(), number++);
      Weights moved = weights;
      const auto loss_at = [&](double h) {
        for (std::size_t i = 0; i < v.size(); ++i) {
          moved[name][i] = values[i] + h * v[i];
        }
        return Definition(settings, moved).losses(all).total(settings);
      };
      const double numeric = (loss_at(1e-4) - loss_at(-1e-4)) / 2e-4;
      double analytic = 0;
      for (std::size_t i = 0; i < v.size(); ++i) {
        analytic += v[i] * static_cast<double>(gradient[i]);
      }
      apart += (analytic - numeric) * (analytic - numeric);
      norm += numeric * numeric;
    }
    EXPECT_LE(std::sqrt(apart), 1e-4 * std::sqrt(norm) + 1e-6) << name;
    EXPECT_GT(norm, 0) << name;
  }
}

// Tokens of a document: those read, and the one that its last position is asked for.
const std::vector<Documents> whole_rows = {{{3, 7, 1, 22, 9, 4, 15, 2}}, {{5, 5, 0, 13, 21, 8, 8, 1}}};
const std::vector<Documents> many_documents = {{{3, 7, 1, 22}, {9, 4}, {15, 2, 6}}, {{5, 11, 0, 13, 21, 8}}, {{1, 2}}};

TEST(MtpDefinition, OneDepth) {
  expect_definition({"model.mtp_depth=1"}, whole_rows);
}

TEST(MtpDefinition, ThreeDepths) {
  expect_definition({"model.mtp_depth=3"}, whole_rows);
}

TEST(MtpDefinition, PackedDocuments) {
  expect_definition({"model.mtp_depth=1"}, many_documents);
  expect_definition({"model.mtp_depth=2", "batch.micro_batch=1"}, many_documents);
}

TEST(MtpDefinition, Recomputed) {
  expect_definition({"model.mtp_depth=2", R"(memory.recompute="full")"}, whole_rows);
}

}  // namespace
}  // namespace orthant::mtp_reference_test
