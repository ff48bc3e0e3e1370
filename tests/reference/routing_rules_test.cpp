// Routers as published models have them, in the configurations that stand for them, against their definitions in fp64:
// DeepSeek-V3 (sigmoid, biases, groups by their two best), DeepSeek-V2 (softmax, groups by their best), Qwen2-MoE and
// OLMoE (softmax over all experts, not normalised), and the shared expert that Qwen2-MoE weighs. Sums of what
// transformers 5.23 makes of the same numbers are beside them.
#include <algorithm>
#include <numeric>

#include "experts/moe_layer.h"
#include "tests/reference/rig.h"
#include "tests/support/op_harness.h"

namespace orthant::test::routing_rules_test {
namespace {

const std::string stem = "model.layers.0.block_sparse_moe";
constexpr std::int64_t tokens = 24, d = 10;

// Numbers without an order: size * sin(0.7 i + 0.011 i^2 + phase), in fp32.
std::vector<float> sines(std::int64_t n, double phase, double size) {
  std::vector<float> made;
  for (std::int64_t i = 0; i < n; ++i) {
    made.push_back(
        static_cast<float>(size * std::sin(static_cast<double>(i) * (0.7 + 0.011 * static_cast<double>(i)) + phase)));
  }
  return made;
}

Values wide(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

Settings settings_of(std::int64_t experts, std::int64_t top_k) {
  Settings s;
  s.data.sequence_length = 12;
  s.batch.sequences = 2;
  s.model.layers = 1;
  s.model.d_model = d;
  s.model.heads = 1;
  s.model.d_ff = 6;
  s.model.activation = Activation::swiglu;
  s.moe.experts = experts;
  s.moe.top_k = top_k;
  return s;
}

// A routed layer whose weights are sines; forward and backward of one batch.
class RoutedLayer {
 public:
  explicit RoutedLayer(const Settings& settings) : rank_(settings), store_(rank_.plan(), rank_.stream()) {
    for (const auto& group : store_.groups()) {
      for (const Param& p : group->params) {
        if (p.spec.name.starts_with(stem)) {
          const std::string name = p.spec.name.substr(stem.size() + 1);
          const double phase = 0.37 * std::accumulate(name.begin(), name.end(), 0);
          weights_[name] = sines(p.elements(), phase, 0.6);
          rank_.set(store_, p.spec.name, weights_[name]);
        }
      }
    }
    layer_ = std::make_unique<MoeLayer>(store_, rank_.plan(), find(rank_.plan().links(), "layer 0"));
    const std::vector<std::int32_t> none(tokens, 0);
    batch_ = rank_.batch(settings.batch.sequences, settings.data.sequence_length, none, none);
  }

  void set_bias(const std::vector<float>& bias) { rank_.stream().upload(store_.gate_state(1), bias.data()); }

  void run() {
    Stream& s = rank_.stream();
    for (ParamGroup* group : store_.groups_of_layer(1)) {
      s.fill(group->grad, 0);
    }
    StepSums sums = rank_.sums();
    ExpertDecisions decisions;
    sums.decisions = &decisions;
    const StepContext ctx{.plan = rank_.plan(), .stream = s, .batch = batch_, .sums = sums};
    Saved saved;
    output = rank_.floats(layer_->forward(ctx, rank_.upload(DType::f32, {tokens, d}, x), saved));
    const Routing routing = Routing::take(decisions.kept);
    logits = wide(rank_.floats(routing.logits));
    expert = rank_.integers(routing.expert);
    weight = rank_.floats(routing.dispatch.weight);
    dx = rank_.floats(layer_->backward(ctx, rank_.upload(DType::f32, {tokens, d}, upstream), saved));
    EXPECT_TRUE(saved.tensors.empty());
  }

  const std::vector<float>& parameter(const std::string& name) const { return weights_.at(name); }
  std::vector<float> gradient(const std::string& name) { return rank_.gradient(store_, stem + "." + name); }

  const std::vector<float> x = sines(tokens * d, 0.2, 1), upstream = sines(tokens * d, 0.5, 1);
  std::vector<float> output, weight, dx;
  std::vector<std::int32_t> expert;
  Values logits;

 private:
  std::map<std::string, std::vector<float>> weights_;
  Rank rank_;
  ParamStore store_;
  std::unique_ptr<MoeLayer> layer_;
  DeviceBatch batch_;
};

// What decides and what weighs, for one token.
struct Rule {
  std::int64_t experts, top_k, groups = 1, of_token = 1;
  bool sigmoid = false, by_two = true, normalised = true;
  double scale = 1;
  Values bias = {};
};

struct Chosen {
  std::vector<std::int32_t> expert;
  std::vector<float> weight;
};

Chosen chosen_by(const Values& logits, const Rule& rule) {
  Chosen all;
  const std::size_t experts = static_cast<std::size_t>(rule.experts),
                    size = experts / static_cast<std::size_t>(rule.groups);
  for (std::size_t t = 0; t < logits.size() / experts; ++t) {
    const Values row(logits.begin() + static_cast<std::ptrdiff_t>(t * experts),
                     logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * experts));
    Values score;
    double sum = 0;
    for (const double x : row) {
      score.push_back(rule.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x));
      sum += score.back();
    }
    Values choice;
    for (std::size_t e = 0; e < experts; ++e) {
      score[e] /= rule.sigmoid ? 1 : sum;
      choice.push_back(score[e] + (rule.bias.empty() ? 0 : rule.bias[e]));
    }
    std::vector<std::pair<double, std::size_t>> worth;
    for (std::size_t g = 0; g < experts / size; ++g) {
      Values of_group(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                      choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(of_group.rbegin(), of_group.rend());
      worth.push_back({-(of_group[0] + (rule.by_two && size > 1 ? of_group[1] : 0)), g});
    }
    std::sort(worth.begin(), worth.end());
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t g = 0; g < static_cast<std::size_t>(rule.of_token); ++g) {
      for (std::size_t e = worth[g].second * size; e < (worth[g].second + 1) * size; ++e) {
        ranked.push_back({-choice[e], e});
      }
    }
    std::sort(ranked.begin(), ranked.end());
    double of_chosen = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(rule.top_k); ++k) {
      of_chosen += score[ranked[k].second];
    }
    for (std::size_t k = 0; k < static_cast<std::size_t>(rule.top_k); ++k) {
      all.expert.push_back(static_cast<std::int32_t>(ranked[k].second));
      all.weight.push_back(
          static_cast<float>(rule.scale * score[ranked[k].second] / (rule.normalised ? of_chosen : 1)));
    }
  }
  return all;
}

// The sums over all choices of w (e + 1) and of w^2 cos(e), as transformers' routers have them.
struct Sums {
  double first, second;
};

void expect_rule(RoutedLayer& layer, const Rule& rule, const Sums& of_transformers) {
  layer.run();
  const Chosen expected = chosen_by(layer.logits, rule);
  EXPECT_EQ(layer.expert, expected.expert);
  expect_equal("weights", layer.weight, expected.weight);
  Sums sums{0, 0};
  for (std::size_t i = 0; i < layer.weight.size(); ++i) {
    const double w = static_cast<double>(layer.weight[i]), e = layer.expert[i];
    sums.first += w * (e + 1);
    sums.second += w * w * std::cos(e);
  }
  expect_equal("first sum", sums.first, of_transformers.first);
  expect_equal("second sum", sums.second, of_transformers.second);
}

TEST(RoutingRules, DeepseekV3) {
  Settings s = settings_of(16, 4);
  s.moe.router = "bias";
  write_keys<ChoiceKeys>(s.moe.own, {.score = ScoreKind::sigmoid, .expert_groups = 4, .groups_per_token = 2});
  s.moe.weight_scale = 2.5;
  RoutedLayer layer(s);
  const std::vector<float> bias = sines(16, 0.4, 0.3);
  layer.set_bias(bias);
  Rule rule{.experts = 16, .top_k = 4, .groups = 4, .of_token = 2, .sigmoid = true, .scale = 2.5, .bias = wide(bias)};
  expect_rule(layer, rule, {386.820878, -11.5836827});
  // The problem tells the rules apart.
  const Chosen right = chosen_by(layer.logits, rule);
  rule.by_two = false;
  EXPECT_NE(chosen_by(layer.logits, rule).expert, right.expert);
  rule.by_two = true;
  rule.bias = {};
  EXPECT_NE(chosen_by(layer.logits, rule).expert, right.expert);
}

TEST(RoutingRules, DeepseekV2) {
  Settings s = settings_of(16, 3);
  write_keys<ChoiceKeys>(
      s.moe.own,
      {.normalize_weights = false, .expert_groups = 4, .groups_per_token = 2, .group_score = GroupScore::max});
  s.moe.weight_scale = 16;
  RoutedLayer layer(s);
  Rule rule{.experts = 16, .top_k = 3, .groups = 4, .of_token = 2, .by_two = false, .normalised = false, .scale = 16};
  expect_rule(layer, rule, {1655.36572, 69.1023503});
  rule.by_two = true;
  EXPECT_NE(chosen_by(layer.logits, rule).expert, layer.expert);
}

// norm_topk_prob = false: probabilities over all experts, as they are.
TEST(RoutingRules, Qwen2AndOlmoe) {
  Settings s = settings_of(8, 4);
  write_keys<ChoiceKeys>(s.moe.own, {.normalize_weights = false});
  RoutedLayer layer(s);
  expect_rule(layer, {.experts = 8, .top_k = 4, .normalised = false}, {85.3238046, 1.5421908});
}

// --- the shared expert that each token weighs

// y [T, d] of the shared expert alone.
Values shared_expert(const std::map<std::string, Values>& w, const Values& x) {
  const std::size_t f = w.at("shared_experts.up_proj.weight").size() / d;
  Values y;
  for (std::size_t t = 0; t < x.size() / d; ++t) {
    const auto times = [&](const Values& matrix, std::size_t row) {
      double sum = 0;
      for (std::size_t i = 0; i < d; ++i) {
        sum += matrix[row * d + i] * x[t * d + i];
      }
      return sum;
    };
    const double gate = 1 / (1 + std::exp(-times(w.at("shared_expert_gate.weight"), 0)));
    Values hidden;
    for (std::size_t i = 0; i < f; ++i) {
      const double g = times(w.at("shared_experts.gate_proj.weight"), i);
      hidden.push_back(g / (1 + std::exp(-g)) * times(w.at("shared_experts.up_proj.weight"), i));
    }
    for (std::size_t i = 0; i < d; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < f; ++j) {
        sum += w.at("shared_experts.down_proj.weight")[i * f + j] * hidden[j];
      }
      y.push_back(gate * sum);
    }
  }
  return y;
}

// a - b.
std::vector<float> apart(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference;
  std::transform(a.begin(), a.end(), b.begin(), std::back_inserter(difference), std::minus<>());
  return difference;
}

// Beside the same layer without it.
TEST(SharedExpert, WeighedByEachToken) {
  Settings s = settings_of(4, 2);
  RoutedLayer routed(s);
  routed.run();
  s.moe.shared_experts = 1;
  s.moe.d_shared = 7;
  s.moe.shared_gate = true;
  RoutedLayer both(s);
  both.run();
  std::map<std::string, Values> w;
  for (const char* name : {"shared_experts.gate_proj.weight", "shared_experts.up_proj.weight",
                           "shared_experts.down_proj.weight", "shared_expert_gate.weight"}) {
    w[name] = wide(both.parameter(name));
  }
  EXPECT_EQ(w.at("shared_experts.up_proj.weight").size(), 7u * d);
  // transformers' Qwen2MoeSparseMoeBlock: the last token's first four numbers, and the sum of all squares.
  expect_equal("last token", {both.output.end() - d, both.output.end() - d + 4},
               {0.44237718f, -0.71857703f, -0.77944064f, -0.65451723f});
  const Values whole = wide(both.output);
  expect_equal("squares", inner(whole, whole), 620.798585);
  const Values upstream = wide(both.upstream), x = wide(both.x), y = shared_expert(w, x);
  expect_equal("output", apart(both.output, routed.output), {y.begin(), y.end()});
  const Values dx = numeric_gradient([&](const Values& moved) { return inner(shared_expert(w, moved), upstream); }, x);
  expect_equal("dx", apart(both.dx, routed.dx), {dx.begin(), dx.end()});
  for (const auto& [name, values] : w) {
    const auto loss = [&, &key = name](const Values& moved) {
      std::map<std::string, Values> changed = w;
      changed[key] = moved;
      return inner(shared_expert(changed, x), upstream);
    };
    const Values expected = numeric_gradient(loss, values);
    expect_equal(name, both.gradient(name), {expected.begin(), expected.end()});
  }
}

}  // namespace
}  // namespace orthant::test::routing_rules_test
