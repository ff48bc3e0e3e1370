// topk: the K likeliest experts. Shazeer et al., "Outrageously large neural networks" (2017); normalised weights as
// Mixtral (Jiang et al., 2024); scores by sigmoid and groups of experts as DeepSeek-V3 (DeepSeek-AI, 2024).
#include "router/gates.h"

namespace orthant {
namespace {

class TopkGate final : public Gate {
 public:
  std::vector<KindKey> keys() const override { return ChoiceKeys::keys().declared(); }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    std::vector<Refusal> found;
    refuse_bad_expert_groups(found, settings.moe);
    return found;
  }

  std::string warning(const Settings& settings) const override {
    return warning_of_constant_weights(settings.moe, read_keys<ChoiceKeys>(settings.moe.own).normalize_weights);
  }

  bool greatest_logits(const MoeSettings& moe) const override {
    const auto keys = read_keys<ChoiceKeys>(moe.own);
    return keys.groups_per_token == keys.expert_groups;
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    if (config.groups_per_token == config.expert_groups) {
      s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
      return;
    }
    s.choose_experts(to.expert, from.logits, {}, from.valid, config);
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }
};

}  // namespace

std::shared_ptr<const Gate> make_topk_gate() {
  return std::make_shared<TopkGate>();
}

}  // namespace orthant
