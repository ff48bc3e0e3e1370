// What gates do unless they say otherwise.
#include <orthant/gate.h>
#include <orthant/settings.h>

namespace orthant {

const Gate& gate_of(const Settings& settings) {
  return settings.catalogue->get<Gate>(settings.moe.router);
}

std::int64_t Gate::implied_top_k(const MoeSettings&) const {
  return 2;
}

std::vector<GateRefusal> Gate::refusals(const Settings&) const {
  return {};
}

std::string Gate::warning(const Settings&) const {
  return "";
}

GateConfig Gate::config(const Settings& settings) const {
  const MoeSettings& moe = settings.moe;
  return {.score = moe.score,
          .experts = moe.columns(),
          .top_k = moe.top_k,
          .zero_experts = moe.zero_experts,
          .normalize_weights = moe.normalize_weights,
          .expert_groups = moe.expert_groups,
          .groups_per_token = moe.groups_per_token,
          .group_score = moe.group_score,
          .sparsemixer_width = moe.sparsemixer_width,
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
