// bias: the K experts of greatest score + bias. The bias decides who is chosen and nothing else: weights are those of
// the scores. After each step an expert's bias falls where it had more than its share of the global batch's choices,
// and rises where it had less. Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"
// (2024); DeepSeek-AI, "DeepSeek-V3" (2024), equation 16.
#include "router/gates.h"

namespace orthant {
namespace {

class BiasGate final : public Gate {
 public:
  std::vector<GateRefusal> refusals(const Settings& settings) const override {
    std::vector<GateRefusal> found;
    refuse_bad_expert_groups(found, settings.moe);
    return found;
  }

  std::string warning(const Settings& settings) const override {
    return warning_of_constant_weights(settings.moe, settings.moe.normalize_weights);
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.choose_experts(to.expert, from.logits, from.state, from.valid, config);
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }

  bool keeps_state(const MoeSettings&) const override { return true; }

  void update(const GateUpdate& of, const Settings& settings, Stream& s) const override {
    s.balance_bias(of.state, of.load(), of.factor, static_cast<float>(settings.moe.bias_update_rate));
  }
};

}  // namespace

std::shared_ptr<const Gate> make_bias_gate() {
  return std::make_shared<BiasGate>();
}

}  // namespace orthant
