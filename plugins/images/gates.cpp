#include "gates.h"

#include "settings.h"

namespace orthant::images {
namespace {

void refuse_choice_keys(std::vector<Refusal>& found, const Settings& s, const char* gate) {
  const ChoiceKeys choice = read_keys<ChoiceKeys>(kind_values(s, "moe"));
  const auto refuse = [&](bool wrong, const char* key, const char* what) {
    if (wrong) {
      found.push_back(
          {{std::string("moe.") + key}, fmt::format("[moe] {}: the gate \"{}\" {}", key, gate, what), "leave it out"});
    }
  };
  refuse(choice.score != ScoreKind::softmax, "score", "weighs by the softmax");
  refuse(choice.expert_groups != 1, "expert_groups", "knows no groups of experts");
}

class BatchPriority final : public Gate {
 public:
  std::vector<Refusal> refusals(const Settings& s) const override {
    std::vector<Refusal> found;
    refuse_choice_keys(found, s, "batch_priority");
    return found;
  }
  GateConfig config(const Settings& s) const override {
    GateConfig config = Gate::config(s);
    config.normalize_weights = false;  // sums to one would leave one choice nothing to be sure of
    config.drop_policy = DropPolicy::probability;
    config.first_choices_first = true;
    return config;
  }
  bool greatest_logits(const MoeSettings&) const override { return true; }
  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
  }
};

class Soft final : public Gate {
 public:
  std::vector<KindKey> keys() const override { return SoftKeys::keys().declared(); }
  std::int64_t implied_top_k(const MoeSettings&) const override { return 1; }
  std::vector<Refusal> refusals(const Settings& s) const override {
    std::vector<Refusal> found;
    refuse_choice_keys(found, s, soft_router);
    const auto refuse = [&](bool wrong, const char* key, const char* what) {
      if (wrong) {
        found.push_back({{std::string("moe.") + key}, fmt::format("[moe] {}: {}", key, what), "leave it out"});
      }
    };
    if (s.model.kind != vit_kind) {
      found.push_back({{"moe.router"},
                       "[moe] router: \"soft\" mixes the tokens of an image, and the model has none",
                       "write model.kind = \"vit\", or another router"});
    }
    refuse(s.moe.capacity_factor > 0, "capacity_factor", "\"soft\" has slots, and nothing is chosen or dropped");
    refuse(s.moe.top_k > 1, "top_k", "with \"soft\" every token is mixed into every slot");
    refuse(s.moe.shared_experts > 0, "shared_experts", "\"soft\" has none");
    refuse(s.moe.zero_experts > 0, "zero_experts", "\"soft\" has none");
    refuse(s.moe.router_bias, "router_bias", "\"soft\" has none");
    refuse(s.moe.expert_bias, "expert_bias", "\"soft\" has none");
    refuse(s.moe.jitter > 0, "jitter", "\"soft\" routes nothing");
    refuse(s.moe.z_loss > 0, "z_loss", "\"soft\" routes nothing");
    return found;
  }
  void choose(const GateChoice&, const GateInput&, const GateConfig&, Stream&) const override {
    fail("the router \"soft\" chooses nothing: only models of kind \"{}\" have its layer", vit_kind);
  }
};

}  // namespace

std::shared_ptr<const Gate> make_batch_priority() {
  return std::make_shared<BatchPriority>();
}
std::shared_ptr<const Gate> make_soft() {
  return std::make_shared<Soft>();
}

}  // namespace orthant::images
