// A gate with a key of its own in [moe]: "topk" at a temperature. Experts stay those of the greatest logits; a warmer
// gate weighs them more alike, and spreads the balance loss over more experts (softmax(logits / warmth)).
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

GateInput warmed(const GateInput& from, Stream& s) {
  GateInput warm = from;
  warm.logits = s.device().empty(DType::f32, from.logits.shape());
  s.copy(warm.logits, from.logits);
  s.scale(warm.logits, share_of(from));
  return warm;
}

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
    const GateInput warm = warmed(from, s);
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, warm.logits, warm.valid, warm.index, warm.key, config);
  }

  void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                float aux_scale, float z_scale, const GateConfig& config, Stream& s) const override {
    Gate::backward(dlogits, dweight, made, warmed(from, s), aux_scale, z_scale, config, s);
    s.scale(dlogits, share_of(from));
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
