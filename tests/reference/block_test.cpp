// The routed layer against transformers' Mixtral and Switch blocks: routing, output, both losses, every gradient.
#include <algorithm>
#include <map>

#include "experts/moe_layer.h"
#include "tests/reference/rig.h"

namespace orthant::test::block_test {
namespace {

const std::string stem = "model.layers.0.block_sparse_moe";

Settings settings_of(const Reference& reference) {
  Settings s;
  s.data.sequence_length = reference.integer("hyper/tokens_per_sequence");
  s.batch.sequences = reference.integer("hyper/sequences");
  s.model.layers = 1;
  s.model.d_model = reference.integer("hyper/d_model");
  s.moe.d_expert = reference.integer("hyper/d_expert");
  s.moe.experts = reference.integer("hyper/experts");
  s.moe.top_k = reference.integer("hyper/top_k");
  return s;
}

// C [m, n] = A [m, k] B [k, n], or with A given as [k, m].
std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, std::size_t m, std::size_t n,
                           bool transpose_a) {
  const std::size_t k = a.size() / m;
  std::vector<float> c;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < k; ++l) {
        sum += static_cast<double>(transpose_a ? a[l * m + i] : a[i * k + l]) * static_cast<double>(b[l * n + j]);
      }
      c.push_back(static_cast<float>(sum));
    }
  }
  return c;
}

// The layer with the reference's weights. `ours` maps a name in the file to one of our parameters.
class RoutedBlock {
 public:
  RoutedBlock(const Reference& reference, const Settings& settings, std::map<std::string, std::string> ours)
      : reference_(reference), ours_(std::move(ours)), rank_(settings), store_(rank_.plan(), rank_.stream()) {
    for (const auto& [theirs, name] : ours_) {
      rank_.set(store_, name, reference_.floats("weight/" + theirs));
    }
    layer_ = std::make_unique<MoeLayer>(store_, rank_.plan(), find(rank_.plan().links(), "layer 0"));
    tokens_ = settings.batch.sequences * settings.data.sequence_length;
    d_ = settings.model.d_model;
    const std::vector<std::int32_t> none(tokens_, 0);
    batch_ = rank_.batch(settings.batch.sequences, settings.data.sequence_length, none, none);
    sums_ = rank_.sums();
  }

  // Forward, then backward from `upstream`, on gradients that nobody has cleared where the layer is to write them.
  void run(const std::vector<float>& upstream, float aux_scale, float z_scale) {
    Stream& s = rank_.stream();
    for (ParamGroup* group : store_.groups_of_layer(1)) {
      s.fill(group->grad, group->experts ? NAN : 0);
      group->grad_empty = group->experts;
    }
    StepContext ctx{.plan = rank_.plan(), .stream = s, .batch = batch_, .sums = sums_};
    ctx.aux_scale = aux_scale;
    ctx.z_scale = z_scale;
    const Tensor x = rank_.upload(DType::f32, {tokens_, d_}, reference_.floats("input"));
    Saved saved;
    output = rank_.floats(layer_->forward(ctx, x, saved));
    Saved copy = saved;
    const Routing routing = Routing::take(copy);
    logits = rank_.floats(routing.logits);
    expert = rank_.integers(routing.expert);
    weight = rank_.floats(routing.dispatch.weight);
    const Tensor dy = rank_.upload(DType::f32, {tokens_, d_}, upstream);
    input_gradient = rank_.floats(layer_->backward(ctx, dy, saved));
    EXPECT_TRUE(saved.tensors.empty());
  }

  std::vector<float> gradient(const std::string& theirs) { return rank_.gradient(store_, ours_.at(theirs)); }

  void expect_forward() {
    expect_equal("router logits", logits, reference_.floats("router_logits"));
    EXPECT_EQ(expert, reference_.integers("expert"));
    expect_equal("combine weights", weight, reference_.floats("expert_weight"));
    expect_equal("output", output, reference_.floats("output"));
  }

  void expect_gradients() {
    expect_equal("gradient of the input", input_gradient, reference_.floats("grad/input"));
    for (const auto& [theirs, name] : ours_) {
      expect_equal("gradient of " + theirs, gradient(theirs), reference_.floats("grad/" + theirs));
    }
  }

  // The values of both losses, and what each alone does to the router and, through it, to the input.
  void expect_losses(const std::string& gate) {
    const std::vector<float> nothing(tokens_ * d_, 0);
    const float mean = 1.0f / static_cast<float>(tokens_);
    const double count = static_cast<double>(tokens_);
    const std::vector<float> x = reference_.floats("input"), w = reference_.floats("weight/" + gate);
    const std::size_t d = static_cast<std::size_t>(d_), experts = w.size() / d;
    for (const std::string loss : {"aux_loss", "z_loss"}) {
      sums_ = rank_.sums();
      run(nothing, loss == "aux_loss" ? mean : 0, loss == "z_loss" ? mean : 0);
      expect_equal("aux_loss", rank_.number(sums_.balance) / count, reference_.number("aux_loss"));
      expect_equal("z_loss", rank_.number(sums_.z) / count, reference_.number("z_loss"));
      const std::vector<float> dlogits = reference_.floats(loss + "_grad/router_logits");  // [T, E]
      expect_equal(loss + ": gradient of the router", gradient(gate), product(dlogits, x, experts, d, true));
      expect_equal(loss + ": gradient of the input", input_gradient,
                   product(dlogits, w, static_cast<std::size_t>(tokens_), d, false));
    }
  }

  // Choices kept, then those dropped, by expert.
  std::vector<std::int64_t> choices() { return rank_.whole_numbers(sums_.counts.rows(0, 1)); }

  std::vector<float> output, logits, weight, input_gradient;
  std::vector<std::int32_t> expert;

 private:
  const Reference& reference_;
  std::map<std::string, std::string> ours_;
  Rank rank_;
  ParamStore store_;
  std::unique_ptr<MoeLayer> layer_;
  std::int64_t tokens_ = 0, d_ = 0;
  DeviceBatch batch_;
  StepSums sums_;
};

TEST(MixtralBlock, OutputGradientsAndLosses) {
  const Reference reference("mixtral_block");
  Settings settings = settings_of(reference);
  settings.model.activation = Activation::swiglu;
  settings.moe.router = "topk";
  std::map<std::string, std::string> ours;
  for (const std::string& name : reference.below("weight/")) {
    ours[name] = "model.layers.0." + name;
  }
  ASSERT_EQ(ours.size(), 13u);
  RoutedBlock block(reference, settings, ours);
  block.run(reference.floats("grad/output"), 0, 0);
  block.expect_forward();
  block.expect_gradients();
  block.expect_losses("block_sparse_moe.gate.weight");
}

TEST(SwitchBlock, OutputGradientsAndLossesWithDroppedTokens) {
  const Reference reference("switch_block");
  Settings settings = settings_of(reference);
  settings.model.activation = Activation::relu;
  settings.moe.router = "switch";
  settings.moe.capacity_factor = 1.1;
  ASSERT_NEAR(reference.number("hyper/capacity_factor"), settings.moe.capacity_factor, 1e-6);
  std::map<std::string, std::string> ours = {{"router.classifier.weight", stem + ".gate.weight"}};
  for (std::int64_t e = 0; e < settings.moe.experts; ++e) {
    ours[fmt::format("experts.expert_{}.wi.weight", e)] = fmt::format("{}.experts.{}.w1.weight", stem, e);
    ours[fmt::format("experts.expert_{}.wo.weight", e)] = fmt::format("{}.experts.{}.w2.weight", stem, e);
  }
  ASSERT_EQ(ours.size(), reference.below("weight/").size());
  RoutedBlock block(reference, settings, ours);
  block.run(reference.floats("grad/output"), 0, 0);
  block.expect_forward();
  block.expect_gradients();

  const std::vector<std::int32_t> expert = reference.integers("expert"), kept = reference.integers("kept");
  std::vector<std::int64_t> load(settings.moe.experts, 0), seated = load;
  const std::size_t d = static_cast<std::size_t>(settings.model.d_model);
  for (std::size_t t = 0; t < kept.size(); ++t) {
    const std::size_t e = static_cast<std::size_t>(expert[t]);
    ++load[e];
    seated[e] += kept[t];
    const std::vector<float> row(block.output.begin() + static_cast<std::ptrdiff_t>(t * d),
                                 block.output.begin() + static_cast<std::ptrdiff_t>((t + 1) * d));
    EXPECT_EQ(row == std::vector<float>(d, 0), kept[t] == 0) << "token " << t;
  }
  std::vector<std::int64_t> choices = seated;
  std::transform(load.begin(), load.end(), seated.begin(), std::back_inserter(choices), std::minus<>());
  EXPECT_EQ(block.choices(), choices);
  EXPECT_EQ(load.at(1), 0) << "the reference is to hold an expert without tokens";
  EXPECT_NE(seated, load) << "the reference is to drop something";
  for (const char* matrix : {"wi", "wo"}) {
    for (const float g : block.gradient(fmt::format("experts.expert_1.{}.weight", matrix))) {
      EXPECT_EQ(g, 0);
    }
  }
  block.expect_losses("router.classifier.weight");
}

}  // namespace
}  // namespace orthant::test::block_test
