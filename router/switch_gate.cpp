// switch: the likeliest expert, weighted by its probability. Fedus et al., "Switch Transformers" (2021).
#include "router/gates.h"

namespace orthant {
namespace {

class SwitchGate final : public Gate {
 public:
  std::int64_t implied_top_k(const MoeSettings&) const override { return 1; }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    std::vector<Refusal> found;
    refuse_other_top_k(found, settings.moe, "switch", 1);
    refuse_sigmoid(found, settings.moe);
    refuse_expert_groups(found, settings.moe, "switch");
    return found;
  }

  std::string warning(const Settings& settings) const override {
    return warning_of_constant_weights(settings.moe, false);
  }

  GateConfig config(const Settings& settings) const override {
    GateConfig config = Gate::config(settings);
    config.normalize_weights = false;
    return config;
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
  }
};

}  // namespace

std::shared_ptr<const Gate> make_switch_gate() {
  return std::make_shared<SwitchGate>();
}

}  // namespace orthant
