// expert_choice: each expert takes equally many tokens of a group, the likeliest. Zhou et al., "Mixture-of-Experts with
// Expert Choice Routing" (2022); rules/expert_choice.h. With one expert it is Mixture of Depths (Raposo et al., 2024).
#include <algorithm>

#include "router/gates.h"

namespace orthant {
namespace {

class ExpertChoiceGate final : public Gate {
 public:
  std::vector<KindKey> keys() const override { return ChoiceKeys::keys().declared(); }
  std::int64_t implied_top_k(const MoeSettings& moe) const override { return std::max<std::int64_t>(moe.experts, 1); }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    const MoeSettings& moe = settings.moe;
    std::vector<Refusal> found;
    refuse_expert_groups(found, moe, "expert_choice");
    if (moe.top_k != moe.experts) {
      found.push_back(
          {{"moe.top_k", "moe.router"},
           fmt::format("[moe] top_k: router \"expert_choice\" lets the experts choose, a token has no top {}",
                       moe.top_k),
           "leave top_k out and write capacity_factor, the mean number of experts of a token"});
    }
    if (moe.capacity_factor <= 0) {
      found.push_back(
          {{"moe.capacity_factor", "moe.router"},
           "[moe] capacity_factor: router \"expert_choice\" needs it, to know how many tokens an expert takes",
           "write the mean number of experts of a token, such as capacity_factor = 2.0"});
    }
    if (moe.balance_over != BalanceOver::group) {
      found.push_back({{"moe.balance_over", "moe.router"},
                       "[moe] balance_over: router \"expert_choice\" is balanced in each group by construction",
                       "leave balance_over out"});
    }
    return found;
  }

  std::string warning(const Settings& settings) const override {
    if (settings.moe.experts == 1 && settings.moe.capacity_factor >= 1) {
      return "moe.router = \"expert_choice\" with moe.experts = 1 takes every token: write a moe.capacity_factor below "
             "1, "
             "the share of the tokens that the expert takes";
    }
    return "moe.router = \"expert_choice\" looks ahead: whether an expert takes a token depends on later tokens, so "
           "losses are not comparable with other routers', and a model that generates token by token routes otherwise "
           "than in training";
  }

  GateConfig config(const Settings& settings) const override {
    GateConfig config = Gate::config(settings);
    config.normalize_weights = false;
    config.experts_choose = true;
    if (settings.moe.experts == 1) {  // the softmax of one logit is 1 for every token: no choice, and no gradient
      config.score = ScoreKind::sigmoid;
    }
    return config;
  }

  double experts_of_token(const MoeSettings& moe) const override {
    return std::min(moe.capacity_factor, static_cast<double>(moe.experts));
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
  }
};

}  // namespace

std::shared_ptr<const Gate> make_expert_choice_gate() {
  return std::make_shared<ExpertChoiceGate>();
}

}  // namespace orthant
