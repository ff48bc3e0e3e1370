// A gate with a key of its own in [moe]: "topk" whose weights are those of softmax(logits / warmth). Experts stay those
// of the greatest logits; a warmer gate weighs them more alike. Auxiliary losses are those of "topk".
//
//   [moe]
//   router = "warm"
//   warmth = 2.0
// A table [plugins.warm_gate] loads it.
#include <orthant/gate.h>
#include <orthant/plugin.h>

#include <memory>

using namespace orthant;

namespace {

struct WarmKeys {
  double warmth = 1;
  static const Keys<WarmKeys>& keys() {
    static const auto all =
        Keys<WarmKeys>()
            .add("warmth", &WarmKeys::warmth, "warm: what a token's logits are divided by.", between(0.01, 100))
            .after("score");
    return all;
  }
};

float share_of(const GateInput& from) {
  return static_cast<float>(1 / read_keys<WarmKeys>(kind_values(*from.moe)).warmth);
}

// Weights at the temperature, and what Stream::gate_choices says beside them.
struct Warmed {
  Warmed(const GateInput& from, const Tensor& expert, const GateConfig& config, Stream& s) {
    Device& device = s.device();
    const Shape by_group{from.logits.dim(0) / config.group_tokens, config.experts};
    logits = device.empty(DType::f32, from.logits.shape());
    weight = device.empty(DType::f32, expert.shape());
    lse = device.empty(DType::f32, {expert.dim(0)});
    chosen = device.empty(DType::i32, by_group);
    s.copy(logits, from.logits);
    s.scale(logits, share_of(from));
    s.gate_choices(weight, lse, chosen, device.empty(DType::f64, by_group), expert, logits, from.valid, config);
  }
  Tensor logits, weight, lse, chosen;
};

class WarmGate final : public Gate {
 public:
  std::vector<KindKey> keys() const override { return WarmKeys::keys().declared(); }

  bool greatest_logits(const MoeSettings&) const override { return true; }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    if (read_keys<ChoiceKeys>(kind_values(settings, "moe")).expert_groups == 1) {
      return {};
    }
    return {{{"moe.expert_groups"}, "[moe] expert_groups: the warm gate knows no groups of experts", "leave it out"}};
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
    if (share_of(from) != 1) {
      s.copy(to.weight, Warmed(from, to.expert, config, s).weight);
    }
  }

  void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                float aux_scale, float z_scale, const GateConfig& config, Stream& s) const override {
    if (share_of(from) == 1) {
      return Gate::backward(dlogits, dweight, made, from, aux_scale, z_scale, config, s);
    }
    const Tensor none = s.device().empty(DType::f32, dweight.shape());
    s.fill(none, 0);
    Gate::backward(dlogits, none, made, from, aux_scale, z_scale, config, s);
    const Warmed warm(from, made.expert, config, s);
    const Tensor by_weight = s.device().empty(DType::f32, dlogits.shape());
    s.gate_backward(by_weight, dweight, made.expert, warm.lse, warm.chosen, warm.logits, from.valid, 0, 0, config);
    s.scale(by_weight, share_of(from));
    s.add(dlogits, by_weight);
  }
};

class WarmGatePlugin final : public Plugin {
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<Gate>("warm", "The top_k likeliest, weighed at a temperature.", std::make_shared<WarmGate>());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("warm_gate", WarmGatePlugin)
