// What gates do unless they say otherwise.
#include <orthant/gate.h>
#include <orthant/settings.h>

namespace orthant {

const Gate& gate_of(const Settings& settings) {
  return settings.catalogue->get<Gate>(settings.moe.router);
}

const Keys<ChoiceKeys>& ChoiceKeys::keys() {
  static const auto all =
      Keys<ChoiceKeys>()
          .choice("score", &ChoiceKeys::score, {"softmax", "sigmoid"},
                  "What a token's logits become before experts are weighted; sigmoid: topk, bias and expert_choice.")
          .add("normalize_weights", &ChoiceKeys::normalize_weights,
               "topk, bias: whether the weights of a token's experts are scaled to sum to one.")
          .after("jitter")
          .add("expert_groups", &ChoiceKeys::expert_groups,
               "topk, bias: equal groups of experts, of which a token chooses some first (DeepSeek-V3).",
               between(1, 64))
          .after("weight_scale")
          .add("groups_per_token", &ChoiceKeys::groups_per_token,
               "topk, bias: groups of a token, the best by group_score.", between(1, 64))
          .choice("group_score", &ChoiceKeys::group_score, {"top2_sum", "max"},
                  "topk, bias: what ranks groups: the sum of their two best experts (DeepSeek-V3), or their best one "
                  "(DeepSeek-V2).");
  return all;
}

std::int64_t Gate::implied_top_k(const MoeSettings&) const {
  return 2;
}

std::vector<Refusal> Gate::refusals(const Settings&) const {
  return {};
}

std::string Gate::warning(const Settings&) const {
  return "";
}

GateConfig Gate::config(const Settings& settings) const {
  const MoeSettings& moe = settings.moe;
  const auto keys = read_keys<ChoiceKeys>(moe.own);
  return {.score = keys.score,
          .experts = moe.columns(),
          .top_k = moe.top_k,
          .zero_experts = moe.zero_experts,
          .normalize_weights = keys.normalize_weights,
          .expert_groups = keys.expert_groups,
          .groups_per_token = keys.groups_per_token,
          .group_score = keys.group_score,
          .capacity_factor = moe.capacity_factor,
          .group_tokens = group_tokens_of(settings),
          .drop_policy = moe.drop_policy};
}

double Gate::experts_of_token(const MoeSettings& moe) const {
  return static_cast<double>(moe.top_k) * static_cast<double>(moe.experts) / static_cast<double>(moe.columns());
}

bool Gate::greatest_logits(const MoeSettings&) const {
  return false;
}

bool Gate::reads_tokens(const MoeSettings&) const {
  return false;
}

void Gate::backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                    float aux_scale, float z_scale, const GateConfig& config, Stream& s) const {
  s.gate_backward(dlogits, dweight, made.expert, made.lse, made.chosen, from.logits, from.valid, aux_scale, z_scale,
                  config);
}

void Gate::losses(const Tensor& balance, const Tensor& z, const GateChoice& made, const GateInput&,
                  const GateConfig& config, Stream& s) const {
  s.gate_losses(balance, z, made.chosen, made.share, made.lse, config);
}

bool Gate::keeps_state(const MoeSettings&) const {
  return false;
}

void Gate::update(const GateUpdate&, const Settings&, Stream&) const {}

}  // namespace orthant
