// A gate whose tokens have as many experts as they need: those with a logit above 0, weighted by it (Wang et al.,
// "ReMoE: Fully Differentiable Mixture-of-Experts with ReLU Routing", 2024). A penalty on the weights keeps the number
// of experts near `experts_of_token`: its coefficient, exp of the gate's state, rises by `rate` where tokens have more.
//
//   [moe]
//   router = "relu"
//   aux_loss = 1e-8     # where the coefficient begins
//   [plugins.relu_gate]
//   experts_of_token = 2.0
#include <cmath>

#include <orthant/gate.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

using namespace orthant;

namespace {

class ReluGate final : public Gate {
 public:
  ReluGate(double experts_of_token, double rate) : experts_of_token_(experts_of_token), rate_(rate) {}

  std::int64_t implied_top_k(const MoeSettings& moe) const override { return moe.columns(); }
  double experts_of_token(const MoeSettings&) const override { return experts_of_token_; }
  bool keeps_state(const MoeSettings&) const override { return true; }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.apply({.name = "relu_gate/choose",
             .inputs = {from.logits, from.valid},
             .outputs = {to.expert},
             .host = [](const HostArguments& a) {
               const auto logit = a.input<float>(0);
               const auto valid = a.input<std::uint8_t>(1);
               const auto expert = a.output<std::int32_t>(0);
               const std::size_t experts = logit.size() / valid.size(), k_count = expert.size() / valid.size();
               for (std::size_t t = 0; t < valid.size(); ++t) {
                 std::size_t k = 0;
                 for (std::size_t e = 0; valid[t] != 0 && e < experts && k < k_count; ++e) {
                   if (logit[t * experts + e] > 0) {
                     expert[t * k_count + k++] = static_cast<std::int32_t>(e);
                   }
                 }
                 for (; k < k_count; ++k) {
                   expert[t * k_count + k] = -1;
                 }
               }
             }});
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
    s.apply({.name = "relu_gate/weigh",
             .inputs = {from.logits, to.expert},
             .outputs = {to.weight},
             .host = [experts = static_cast<std::size_t>(config.experts)](const HostArguments& a) {
               const auto logit = a.input<float>(0);
               const auto expert = a.input<std::int32_t>(1);
               const auto weight = a.output<float>(0);
               const std::size_t k_count = static_cast<std::size_t>(a.input_shape(1)[1]);
               for (std::size_t i = 0; i < weight.size(); ++i) {
                 const std::int32_t e = expert[i];
                 weight[i] = e < 0 ? 0.0f : logit[i / k_count * experts + static_cast<std::size_t>(e)];
               }
             }});
  }

  // The penalty stands in the place of the balance loss: exp(state) times the sum of the weights.
  void losses(const Tensor& balance, const Tensor& z, const GateChoice& made, const GateInput& from,
              const GateConfig& config, Stream& s) const override {
    const Tensor unused = s.device().empty(DType::f64, {1});
    s.fill(unused, 0);
    s.gate_losses(unused, z, made.chosen, made.share, made.lse, config);
    s.apply({.name = "relu_gate/penalty",
             .inputs = {made.weight, from.state, balance},
             .outputs = {balance},
             .host = [](const HostArguments& a) {
               double sum = 0;
               for (const float w : a.input<float>(0)) {
                 sum += static_cast<double>(w);
               }
               a.output<double>(0)[0] += std::exp(static_cast<double>(a.input<float>(1)[0])) * sum;
             }});
  }

  void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                float aux_scale, float z_scale, const GateConfig& config, Stream& s) const override {
    const Tensor none = s.device().empty(DType::f32, dweight.shape());
    s.fill(none, 0);
    s.gate_backward(dlogits, none, made.expert, made.lse, made.chosen, from.logits, from.valid, 0, z_scale, config);
    s.apply({.name = "relu_gate/backward",
             .inputs = {dweight, made.expert, from.state, dlogits},
             .outputs = {dlogits},
             .host = [aux_scale](const HostArguments& a) {
               const auto by_weight = a.input<float>(0);
               const auto expert = a.input<std::int32_t>(1);
               const float penalty = aux_scale * std::exp(a.input<float>(2)[0]);
               const auto by_logit = a.output<float>(0);
               const std::size_t k_count = static_cast<std::size_t>(a.input_shape(1)[1]),
                                 experts = static_cast<std::size_t>(a.output_shape(0)[1]);
               for (std::size_t i = 0; i < expert.size(); ++i) {
                 if (expert[i] >= 0) {
                   by_logit[i / k_count * experts + static_cast<std::size_t>(expert[i])] += by_weight[i] + penalty;
                 }
               }
             }});
  }

  void update(const GateUpdate& of, const Settings&, Stream& s) const override {
    s.apply({.name = "relu_gate/update",
             .inputs = {of.load(), of.factor, of.state},
             .outputs = {of.state},
             .host = [tokens = of.tokens, wanted = experts_of_token_, rate = rate_](const HostArguments& a) {
               std::int64_t choices = 0;
               for (const std::int64_t n : a.input<std::int64_t>(0)) {
                 choices += n;
               }
               const double each = static_cast<double>(choices) / static_cast<double>(tokens);
               for (float& of_expert : a.output<float>(0)) {
                 if (!std::isnan(a.input<float>(1)[0])) {
                   of_expert += static_cast<float>(each > wanted ? rate : -rate);
                 }
               }
             }});
  }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    std::vector<Refusal> found;
    if (read_keys<ChoiceKeys>(settings.moe.own).expert_groups != 1) {
      found.push_back({{"moe.expert_groups"}, "[moe] expert_groups: the ReLU gate knows none", "leave it out"});
    }
    if (settings.moe.balance_over != BalanceOver::group) {
      found.push_back({{"moe.balance_over"}, "[moe] balance_over: the ReLU gate balances nothing", "leave it out"});
    }
    return found;
  }

 private:
  double experts_of_token_, rate_;
};

class ReluGatePlugin final : public Plugin {
  std::vector<KeySpec> keys() const override {
    return {
        {.name = "experts_of_token", .default_value = 2.0, .help = "Experts of a token on average.", .minimum = 0},
        {.name = "rate", .default_value = 0.2, .help = "What a step adds to the penalty's logarithm.", .minimum = 0}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<Gate>("relu", "Experts with a logit above 0 (Wang et al., \"ReMoE\", 2024).",
                        std::make_shared<ReluGate>(config.number("experts_of_token"), config.number("rate")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("relu_gate", ReluGatePlugin)
