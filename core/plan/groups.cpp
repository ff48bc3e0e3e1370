#include "core/plan/groups.h"

#include <orthant/settings.h>

#include <optional>

namespace orthant {
namespace {

using Ranks = std::optional<GroupSpec>;

Ranks ranks_that_split(const Plan& plan, Dim dim, Region region, const char* purpose) {
  std::vector<int> members = plan.mesh().members(plan.axes_of(dim, region), plan.mesh().rank());
  return members.size() == 1 ? Ranks() : GroupSpec{purpose, std::move(members)};
}

Ranks of_vocabulary(const Plan& plan) {
  return ranks_that_split(plan, Dim::vocab, Region::head, "vocabulary");
}

Ranks of_sequences(const Plan& plan) {
  return ranks_that_split(plan, Dim::position, Region::head, "sequences");
}

Ranks of_routing(const Plan& plan) {
  return ranks_that_split(plan, Dim::position, Region::router, "routing");
}

Ranks of_balance(const Plan& plan) {
  const MoeSettings& moe = plan.settings().moe;
  const bool of_batch = moe.experts > 0 && moe.balance_over == BalanceOver::batch;
  return of_batch ? GroupSpec{"balance", plan.stage_members()} : Ranks();
}

Group* group_of(Plan& plan, const Ranks& ranks) {
  return ranks.has_value() ? &plan.group(*ranks) : nullptr;
}

}  // namespace

std::vector<GroupSpec> groups_of_layers(const Plan& plan, bool over_sequences) {
  std::vector<GroupSpec> all;
  const auto add = [&](const Ranks& ranks) {
    if (ranks.has_value()) {
      all.push_back(*ranks);
    }
  };
  add(of_vocabulary(plan));
  if (over_sequences) {
    add(of_sequences(plan));
  }
  if (plan.settings().moe.experts > 0) {
    add(of_routing(plan));
    add(of_balance(plan));
  }
  return all;
}

Group* vocabulary_group(Plan& plan) {
  return group_of(plan, of_vocabulary(plan));
}

Group* sequence_group(Plan& plan) {
  return group_of(plan, of_sequences(plan));
}

Group* routing_group(Plan& plan) {
  return group_of(plan, of_routing(plan));
}

Group* balance_group(Plan& plan) {
  return group_of(plan, of_balance(plan));
}

}  // namespace orthant
