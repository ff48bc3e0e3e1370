#include "router/gates.h"

#include "router/rules/gate.h"

namespace orthant {

void add_gates(Catalogue& catalogue) {
  catalogue.add<Gate>("switch", "The likeliest expert of each token (Fedus et al., \"Switch Transformers\", 2021).",
                      make_switch_gate());
  catalogue.add<Gate>("gshard",
                      "The likeliest two, the second by chance in proportion to its weight (Lepikhin et al., "
                      "\"GShard\", 2020).",
                      make_gshard_gate());
  catalogue.add<Gate>("topk", "The top_k likeliest, with their weights (Jiang et al., \"Mixtral of Experts\", 2024).",
                      make_topk_gate());
  catalogue.add<Gate>(
      "expert_choice",
      "Each expert takes the likeliest tokens of a group (Zhou et al., \"Mixture-of-Experts with Expert "
      "Choice Routing\", 2022).",
      make_expert_choice_gate());
  catalogue.add<Gate>("bias",
                      "The top_k of greatest score + bias; each step moves an expert's bias against its load (Wang et "
                      "al., \"Auxiliary-Loss-Free Load Balancing\", 2024; DeepSeek-V3).",
                      make_bias_gate());
  catalogue.add<Gate>("sparsemixer",
                      "The likeliest two, each weighed among the experts that come near to it (Liu et al., \"Sparse "
                      "Backpropagation for MoE Training\", 2023; Phi-3.5-MoE).",
                      make_sparsemixer_gate());
}

void refuse_other_top_k(std::vector<Refusal>& to, const MoeSettings& moe, const std::string& router, std::int64_t k) {
  if (moe.top_k != k) {
    to.push_back(
        {{"moe.top_k", "moe.router"},
         fmt::format("[moe] top_k: router \"{}\" chooses {} expert{}, not {}", router, k, k == 1 ? "" : "s", moe.top_k),
         fmt::format("write top_k = {}, leave it out, or write router = \"topk\"", k)});
  }
}

void refuse_sigmoid(std::vector<Refusal>& to, const MoeSettings& moe) {
  if (read_keys<ChoiceKeys>(moe.own).score != ScoreKind::softmax) {
    to.push_back({{"moe.score", "moe.router"},
                  "[moe] score: only routers \"topk\", \"bias\" and \"expert_choice\" take scores by sigmoid",
                  "write router = \"topk\", or leave score out"});
  }
}

void refuse_expert_groups(std::vector<Refusal>& to, const MoeSettings& moe, const std::string& router) {
  if (read_keys<ChoiceKeys>(moe.own).expert_groups != 1) {
    to.push_back({{"moe.expert_groups", "moe.router"},
                  fmt::format("[moe] expert_groups: router \"{}\" knows no groups of experts", router),
                  "write router = \"topk\" or \"bias\", or leave expert_groups out"});
  }
}

std::string warning_of_constant_weights(const MoeSettings& moe, bool normalized) {
  if (moe.columns() == 1 && (normalized || read_keys<ChoiceKeys>(moe.own).score == ScoreKind::softmax)) {
    return fmt::format(
        "moe.router = \"{}\" with moe.experts = 1: every token's choice is the one expert, with weight 1, and the "
        "router "
        "has nothing to learn{}",
        moe.router,
        moe.capacity_factor > 0 && moe.capacity_factor < 1
            ? "; moe.capacity_factor gives the first tokens of each group its seats, whatever they are. For Mixture of "
              "Depths, whose expert takes the tokens of greatest score, write moe.router = \"expert_choice\""
            : "");
  }
  if (moe.top_k != 1 || !normalized) {
    return "";
  }
  return fmt::format(
      "moe.router = \"{}\" with moe.top_k = 1 and normalised weights: the one choice of a token weighs 1 whatever its "
      "logit, so that the router {}; write moe.normalize_weights = false, or moe.router = \"switch\"",
      moe.router,
      moe.aux_loss > 0 || moe.z_loss > 0 ? "learns from its auxiliary losses alone"
                                         : "learns nothing, as its auxiliary losses are 0");
}

void refuse_bad_expert_groups(std::vector<Refusal>& to, const MoeSettings& moe) {
  const std::vector<std::string> keys = {"moe.expert_groups", "moe.groups_per_token", "moe.experts", "moe.top_k"};
  const auto chosen = read_keys<ChoiceKeys>(moe.own);
  const std::int64_t groups = chosen.expert_groups, groups_per_token = chosen.groups_per_token;
  if (groups > max_expert_groups || moe.experts % groups != 0) {
    to.push_back({keys, fmt::format("[moe] expert_groups: {} experts are not {} equal groups", moe.experts, groups),
                  fmt::format("write a divisor of {} of at most {}", moe.experts, max_expert_groups)});
    return;
  }
  const std::int64_t size = moe.experts / groups;
  if (groups_per_token > groups) {
    to.push_back({{"moe.groups_per_token", "moe.expert_groups"},
                  fmt::format("[moe] groups_per_token: {} of {} groups cannot be chosen", groups_per_token, groups),
                  fmt::format("write at most {}", groups)});
  } else if (groups_per_token * size < moe.top_k && moe.top_k <= moe.experts) {
    to.push_back({{"moe.groups_per_token", "moe.expert_groups", "moe.top_k"},
                  fmt::format("[moe] groups_per_token: {} groups of {} experts have no top {}", groups_per_token, size,
                              moe.top_k),
                  fmt::format("write at least {}, or fewer groups", (moe.top_k + size - 1) / size)});
  }
}

}  // namespace orthant
