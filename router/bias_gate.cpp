// bias: the K experts of greatest score + bias. The bias decides who is chosen and nothing else: weights are those of
// the scores. After each step an expert's bias falls where it had more than its share of the global batch's choices,
// and rises where it had less. Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"
// (2024); DeepSeek-AI, "DeepSeek-V3" (2024), equation 16.
#include "router/gates.h"

namespace orthant {
namespace {

class BiasGate final : public Gate {
 public:
  std::vector<KindKey> keys() const override {
    std::vector<KindKey> all = ChoiceKeys::keys().declared(), own = BiasKeys::keys().declared();
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    std::vector<Refusal> found;
    refuse_bad_expert_groups(found, settings.moe);
    return found;
  }

  std::string warning(const Settings& settings) const override {
    return warning_of_constant_weights(settings.moe, read_keys<ChoiceKeys>(settings.moe.own).normalize_weights);
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.choose_experts(to.expert, from.logits, from.state, from.valid, config);
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }

  bool keeps_state(const MoeSettings&) const override { return true; }

  void update(const GateUpdate& of, const Settings& settings, Stream& s) const override {
    const double rate = read_keys<BiasKeys>(settings.moe.own).bias_update_rate;
    s.balance_bias(of.state, of.load(), of.factor, static_cast<float>(rate));
  }
};

}  // namespace

const Keys<BiasKeys>& BiasKeys::keys() {
  static const auto all =
      Keys<BiasKeys>().add("bias_update_rate", &BiasKeys::bias_update_rate,
                           "bias: what a step adds to the bias of an expert with less than the mean load, and takes "
                           "from one with more.",
                           at_least(0));
  return all;
}

std::shared_ptr<const Gate> make_bias_gate() {
  return std::make_shared<BiasGate>();
}

}  // namespace orthant
