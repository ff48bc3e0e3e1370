// The gates that the core brings, each in a file of its own: NAME_gate.cpp.
#pragma once

#include <orthant/catalogue.h>
#include <orthant/gate.h>
#include <orthant/settings.h>

namespace orthant {

void add_gates(Catalogue& catalogue);

struct BiasKeys {
  double bias_update_rate = 0.001;  // what a step adds to an expert's bias, or takes from it
  static const Keys<BiasKeys>& keys();
};

std::shared_ptr<const Gate> make_switch_gate();
std::shared_ptr<const Gate> make_gshard_gate();
std::shared_ptr<const Gate> make_topk_gate();
std::shared_ptr<const Gate> make_expert_choice_gate();
std::shared_ptr<const Gate> make_bias_gate();
std::shared_ptr<const Gate> make_sparsemixer_gate();

// What several of them refuse.
// A gate that chooses `k` experts, under the name `router`.
void refuse_other_top_k(std::vector<Refusal>& to, const MoeSettings& moe, const std::string& router, std::int64_t k);
void refuse_sigmoid(std::vector<Refusal>& to, const MoeSettings& moe);
// Groups of experts, for gates that know none; and groups that do not fit, for those that do.
void refuse_expert_groups(std::vector<Refusal>& to, const MoeSettings& moe, const std::string& router);
void refuse_bad_expert_groups(std::vector<Refusal>& to, const MoeSettings& moe);

// Of gates whose only choice may weigh 1 whatever its logit: the loss then has no gradient there. normalized: whether
// weights are divided by their sum. Empty: it is not so.
std::string warning_of_constant_weights(const MoeSettings& moe, bool normalized);

}  // namespace orthant
