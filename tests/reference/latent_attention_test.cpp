// Latent attention against its definition in fp64, head by head and token by token, and against transformers'
// DeepseekV3Attention, whose output for the same numbers is below.
#include "core/layers/latent_attention.h"
#include "core/arch/decoder.h"
#include "tests/reference/rig.h"
#include "tests/reference/rotary_oracle.h"
#include "tests/support/op_harness.h"

namespace orthant::test::latent_attention_test {
namespace {

constexpr std::int64_t sequences = 2, positions = 5, tokens = sequences * positions;
using Weights = std::map<std::string, Values>;

// Numbers that another program makes again: size * sin(0.7 i + phase), in fp32.
Values sines(std::int64_t n, double phase, double size, double mean = 0) {
  Values made;
  for (std::int64_t i = 0; i < n; ++i) {
    made.push_back(
        static_cast<double>(static_cast<float>(mean + size * std::sin(0.7 * static_cast<double>(i) + phase))));
  }
  return made;
}

std::vector<float> narrow(const Values& x) {
  return {x.begin(), x.end()};
}

Settings settings_of(std::int64_t q_rank, bool interleaved, RopeScaling scaling) {
  Settings s;
  s.data.sequence_length = positions;
  s.batch.sequences = sequences;
  ModelSettings& m = s.model;
  m.layers = 1;
  m.d_model = 12;
  m.heads = 3;
  m.attention = "latent";
  m.norm_eps = 1e-6;
  write_keys<LatentKeys>(
      m.own, {.q_lora_rank = q_rank, .kv_lora_rank = 6, .qk_nope_head_dim = 6, .qk_rope_head_dim = 4, .v_head_dim = 8});
  RotaryKeys rotary{.rope_interleaved = interleaved, .rope_scaling = scaling};
  if (scaling == RopeScaling::yarn) {
    rotary.rope_factor = 8;
    rotary.rope_original_positions = 16;
    rotary.rope_beta_fast = 2;
    rotary.rope_beta_slow = 0.25;
    rotary.rope_mscale = 0.7;
    rotary.rope_mscale_all_dim = 1.3;
  }
  write_keys(m.own, rotary);
  return s;
}

// y [rows, n] = x [rows, k] w [n, k]^T.
Values times(const Values& x, const Values& w, std::int64_t k) {
  Values y;
  for (std::size_t row = 0; row < x.size() / static_cast<std::size_t>(k); ++row) {
    for (std::size_t out = 0; out < w.size() / static_cast<std::size_t>(k); ++out) {
      double sum = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
        sum += x[row * static_cast<std::size_t>(k) + i] * w[out * static_cast<std::size_t>(k) + i];
      }
      y.push_back(sum);
    }
  }
  return y;
}

Values columns(const Values& x, std::int64_t width, std::int64_t first, std::int64_t count) {
  Values cut;
  for (std::size_t row = 0; row < x.size() / static_cast<std::size_t>(width); ++row) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row) * width + first;
    cut.insert(cut.end(), begin, begin + count);
  }
  return cut;
}

Values normed(const Values& x, const Values& weight, double eps) {
  const std::size_t n = weight.size();
  Values y;
  for (std::size_t at = 0; at < x.size(); at += n) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      squares += x[at + i] * x[at + i];
    }
    for (std::size_t i = 0; i < n; ++i) {
      y.push_back(x[at + i] * weight[i] / std::sqrt(squares / static_cast<double>(n) + eps));
    }
  }
  return y;
}

// A head's rotated channels at `position`.
Values turned(const Values& x, std::int64_t position, const ModelSettings& of) {
  const auto m = read_keys<RotaryKeys>(of.own);
  const Values frequency = rotary_oracle::inverse_frequencies(m, read_keys<LatentKeys>(of.own).qk_rope_head_dim);
  const double factor = rotary_oracle::attention_factor(m);
  Values y = x;
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    const std::size_t a = m.rope_interleaved ? 2 * i : i, b = m.rope_interleaved ? 2 * i + 1 : i + frequency.size();
    const double angle = static_cast<double>(position) * frequency[i];
    y[a] = factor * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
    y[b] = factor * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
  }
  return y;
}

// The definition. w: by the name behind the stem.
Values latent_attention(const ModelSettings& m, const Weights& w, const Values& x) {
  const auto keys = read_keys<LatentKeys>(m.own);
  const auto rotary = read_keys<RotaryKeys>(m.own);
  const std::int64_t nope = keys.qk_nope_head_dim, rope = keys.qk_rope_head_dim, c = nope + rope, v = keys.v_head_dim;
  const std::int64_t r = keys.kv_lora_rank, h = m.heads, d = m.d_model;
  const Values q = keys.q_lora_rank == 0
                       ? times(x, w.at("q_proj.weight"), d)
                       : times(normed(times(x, w.at("q_a_proj.weight"), d), w.at("q_a_layernorm.weight"), m.norm_eps),
                               w.at("q_b_proj.weight"), keys.q_lora_rank);
  const Values down = times(x, w.at("kv_a_proj_with_mqa.weight"), d);
  const Values kv = times(normed(columns(down, r + rope, 0, r), w.at("kv_a_layernorm.weight"), m.norm_eps),
                          w.at("kv_b_proj.weight"), r);
  const Values k_rope = columns(down, r + rope, r, rope);
  const double root = rotary.rope_scaling == RopeScaling::yarn && rotary.rope_mscale_all_dim != 0
                          ? rotary_oracle::mscale(rotary, rotary.rope_mscale_all_dim)
                          : 1;
  const double scale = root * root / std::sqrt(static_cast<double>(c));
  const auto part = [](const Values& all, std::int64_t at, std::int64_t n) {
    return Values(all.begin() + at, all.begin() + at + n);
  };
  Values o;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t first = t / positions * positions;
    for (std::int64_t head = 0; head < h; ++head) {
      const std::int64_t q_at = (t * h + head) * c;
      const Values q_rope = turned(part(q, q_at + nope, rope), t - first, m);
      Values weight;
      double sum = 0;
      for (std::int64_t u = first; u <= t; ++u) {
        const double score = inner(part(q, q_at, nope), part(kv, (u * h + head) * (nope + v), nope)) +
                             inner(q_rope, turned(part(k_rope, u * rope, rope), u - first, m));
        weight.push_back(std::exp(scale * score));
        sum += weight.back();
      }
      Values of_head(static_cast<std::size_t>(v), 0);
      for (std::int64_t u = first; u <= t; ++u) {
        for (std::int64_t i = 0; i < v; ++i) {
          of_head[static_cast<std::size_t>(i)] += weight[static_cast<std::size_t>(u - first)] / sum *
                                                  kv[static_cast<std::size_t>((u * h + head) * (nope + v) + nope + i)];
        }
      }
      o.insert(o.end(), of_head.begin(), of_head.end());
    }
  }
  return times(o, w.at("o_proj.weight"), h * v);
}

// Weights and input as both programs make them: a phase for each parameter, in the order of the table.
struct Problem {
  explicit Problem(const Settings& s) : settings(s) {
    double phase = 1;
    for (const ParamSpec& p : attention_part(s).parameters(attention_place(s, 0))) {
      const bool norm = p.global.rank() == 1;
      weights[p.name.substr(stem.size() + 1)] = sines(p.global.elements(), phase++, norm ? 0.2 : 0.5, norm ? 1 : 0);
    }
  }
  const Settings settings;
  const std::string stem = "model.layers.0.self_attn";
  Weights weights;
  Values x = sines(tokens * 12, 0, 1);
};

class Layer1 {
 public:
  explicit Layer1(const Problem& p) : problem_(p), rank_(p.settings), store_(rank_.plan(), rank_.stream()) {
    for (const auto& [name, values] : p.weights) {
      rank_.set(store_, p.stem + "." + name, narrow(values));
    }
    const std::vector<std::int32_t> none(tokens, 0);
    batch_ = rank_.batch(sequences, positions, none, none);
    layer_ = attention_part(p.settings).make(attention_place(p.settings, 0), store_, rank_.plan());
  }

  void run(const Values& upstream) {
    Stream& s = rank_.stream();
    for (ParamGroup* group : store_.groups_of_layer(1)) {
      s.fill(group->grad, 0);
    }
    StepSums sums = rank_.sums();
    const StepContext ctx{.plan = rank_.plan(), .stream = s, .batch = batch_, .sums = sums};
    const Shape shape{tokens, problem_.settings.model.d_model};
    Saved saved;
    output = rank_.floats(layer_->forward(ctx, rank_.upload(DType::f32, shape, narrow(problem_.x)), saved));
    dx = rank_.floats(layer_->backward(ctx, rank_.upload(DType::f32, shape, narrow(upstream)), saved));
    EXPECT_TRUE(saved.tensors.empty());
  }
  std::vector<float> gradient(const std::string& name) { return rank_.gradient(store_, problem_.stem + "." + name); }

  std::vector<float> output, dx;

 private:
  const Problem& problem_;
  Rank rank_;
  ParamStore store_;
  DeviceBatch batch_;
  std::unique_ptr<PartLayer> layer_;
};

TEST(LatentAttention, OutputAndEveryGradientByTheDefinition) {
  for (const std::int64_t q_rank : {0, 5}) {
    for (const bool interleaved : {false, true}) {
      for (const RopeScaling scaling : {RopeScaling::none, RopeScaling::yarn}) {
        SCOPED_TRACE(fmt::format("{} {} {}", q_rank, interleaved, static_cast<int>(scaling)));
        const Problem p(settings_of(q_rank, interleaved, scaling));
        const ModelSettings& m = p.settings.model;
        const Values upstream = sines(tokens * m.d_model, 0.3, 1);
        Layer1 layer(p);
        layer.run(upstream);
        expect_equal("output", layer.output, narrow(latent_attention(m, p.weights, p.x)));
        expect_equal("dx", layer.dx,
                     narrow(numeric_gradient(
                         [&](const Values& x) { return inner(latent_attention(m, p.weights, x), upstream); }, p.x)));
        for (const auto& [name, values] : p.weights) {
          const auto loss = [&, &key = name](const Values& moved) {
            Weights changed = p.weights;
            changed[key] = moved;
            return inner(latent_attention(m, changed, p.x), upstream);
          };
          expect_equal(name, layer.gradient(name), narrow(numeric_gradient(loss, values)));
        }
      }
    }
  }
}

// transformers 5.23, with the same weights and input: the last token's first four numbers, and the sum of all squares.
TEST(LatentAttention, OutputOfTransformers) {
  struct Known {
    std::int64_t q_rank;
    bool interleaved;
    RopeScaling scaling;
    std::vector<float> last;
    double squares;
  };
  const Known all[] = {
      {0, false, RopeScaling::none, {-0.095060676f, 0.54545021f, -0.40749398f, -0.17000276f}, 11.027416229248047},
      {0, false, RopeScaling::yarn, {-0.089437276f, 0.57102025f, -0.43667644f, -0.16868529f}, 11.615253448486328},
      {0, true, RopeScaling::none, {-0.098514915f, 0.51441234f, -0.37544271f, -0.16849568f}, 12.123371124267578},
      {0, true, RopeScaling::yarn, {-0.1026884f, 0.57413924f, -0.42629898f, -0.18136573f}, 13.5545015335083},
      {5, false, RopeScaling::none, {-0.0049593635f, 0.027566962f, -0.020439655f, -0.0087347347f}, 0.31224972009658813},
      {5, false, RopeScaling::yarn, {-0.0057843495f, 0.039058462f, -0.030202463f, -0.011231225f}, 0.43478861451148987},
      {5, true, RopeScaling::none, {-0.028290119f, 0.060306326f, -0.027273573f, -0.035177648f}, 0.46938830614089966},
      {5, true, RopeScaling::yarn, {-0.036341019f, 0.087706193f, -0.04446768f, -0.046735521f}, 0.6735266447067261}};
  for (const Known& one : all) {
    SCOPED_TRACE(fmt::format("{} {} {}", one.q_rank, one.interleaved, static_cast<int>(one.scaling)));
    const Problem p(settings_of(one.q_rank, one.interleaved, one.scaling));
    Layer1 layer(p);
    layer.run(p.x);
    const auto last = layer.output.end() - p.settings.model.d_model;
    expect_equal("last token", {last, last + 4}, one.last);
    double squares = 0;
    for (const float y : layer.output) {
      squares += static_cast<double>(y) * static_cast<double>(y);
    }
    expect_equal("squares", squares, one.squares);
  }
}

}  // namespace
}  // namespace orthant::test::latent_attention_test
