// gshard: the likeliest two experts, weights that sum to one; the second is kept with probability 2 * weight, and
// first choices alone count for balance. Lepikhin et al., "GShard" (2020), algorithm 1.
#include "router/gates.h"

namespace orthant {
namespace {

class GshardGate final : public Gate {
 public:
  std::vector<Refusal> refusals(const Settings& settings) const override {
    std::vector<Refusal> found;
    refuse_other_top_k(found, settings.moe, "gshard", 2);
    refuse_sigmoid(found, settings.moe);
    refuse_expert_groups(found, settings.moe, "gshard");
    return found;
  }

  GateConfig config(const Settings& settings) const override {
    GateConfig config = Gate::config(settings);
    config.normalize_weights = true;
    config.counted_choices = 1;
    config.second_by_chance = true;
    config.first_choices_first = true;
    return config;
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
  }
};

}  // namespace

std::shared_ptr<const Gate> make_gshard_gate() {
  return std::make_shared<GshardGate>();
}

}  // namespace orthant
