#include "core/run/routing_alarms.h"

#include <orthant/gate.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/arch/links.h"
#include "router/gates.h"

namespace orthant {
namespace {

constexpr int reports_to_begin = 3;
constexpr std::int64_t most_settling_steps = 100;
constexpr double nearly_all = 0.95;
constexpr std::int64_t fair_choices = 8;  // fewer in a step, and an expert may have none by chance
constexpr double far_too_few = 0.25;
constexpr double nothing_beside = 1e-3;

struct Fewest {
  std::size_t experts = 0;
  double share = 0;  // of the choices, that they have
};

// The fewest experts that have nearly all choices.
Fewest fewest_with_nearly_all(std::vector<std::int64_t> load, std::int64_t all) {
  std::sort(load.begin(), load.end(), std::greater<>());
  Fewest fewest;
  std::int64_t sum = 0;
  while (fewest.experts < load.size() && static_cast<double>(sum) < nearly_all * static_cast<double>(all)) {
    sum += load[fewest.experts++];
  }
  fewest.share = static_cast<double>(sum) / static_cast<double>(all);
  return fewest;
}

}  // namespace

RoutingAlarms::RoutingAlarms(const Settings& settings)
    : moe_(settings.moe),
      experts_of_token_(moe_.experts > 0 ? gate_of(settings).experts_of_token(moe_) : 0),
      settled_(std::max(settings.optimizer.warmup_steps, std::min(most_settling_steps, settings.run.steps / 20))) {
  const std::vector<LayerSpecs> table = parameter_table(settings);
  learns_ = std::any_of(table.begin(), table.end(), router_learns);
}

void RoutingAlarms::count_idle(const LayerCounters& counters) {
  const std::int64_t all = std::accumulate(counters.load.begin(), counters.load.end(), std::int64_t{0});
  const bool enough = all >= fair_choices * static_cast<std::int64_t>(counters.load.size());
  std::vector<int>& idle = idle_[counters.block];
  idle.resize(counters.load.size());
  for (std::size_t e = 0; e < idle.size(); ++e) {
    idle[e] = enough && counters.load[e] == 0 ? idle[e] + 1 : 0;
  }
}

std::string RoutingAlarms::wrong(Kind kind, const LayerCounters& counters, const LayerRouting& routing) const {
  const std::int64_t all = std::accumulate(counters.load.begin(), counters.load.end(), std::int64_t{0});
  const auto experts = static_cast<std::int64_t>(counters.load.size());
  const int block = counters.block;
  if (kind == Kind::few) {
    const double each = static_cast<double>(all) / static_cast<double>(std::max<std::int64_t>(counters.tokens, 1));
    return each < far_too_few * experts_of_token_
               ? fmt::format("tokens choose {:.2g} experts each in block {}, where {:.3g} are reckoned with", each,
                             block, experts_of_token_)
               : "";
  }
  if (kind == Kind::collapse) {
    const Fewest fewest = all > 0 ? fewest_with_nearly_all(counters.load, all) : Fewest{counters.load.size(), 0};
    const auto few = static_cast<std::int64_t>(fewest.experts);
    return few <= std::max(moe_.top_k, experts / 8) && few < experts
               ? fmt::format("the router of block {} has collapsed: {} of its {} experts have {:.0f} % of the choices",
                             block, few, experts, 100 * fewest.share)
               : "";
  }
  if (kind == Kind::dead) {
    std::vector<std::int64_t> dead;
    const std::vector<int>& idle = idle_.at(counters.block);
    for (std::int64_t e = 0; e < experts; ++e) {
      if (idle[static_cast<std::size_t>(e)] >= reports_to_begin) {
        dead.push_back(e);
      }
    }
    const bool told = !dead.empty();
    const std::size_t named = std::min<std::size_t>(dead.size(), 8);
    return told ? fmt::format("block {} has {} dead expert{} of {} ({}{}): no token chooses {}", block, dead.size(),
                              dead.size() == 1 ? "" : "s", experts,
                              fmt::join(dead.begin(), dead.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                              named < dead.size() ? ", ..." : "", dead.size() == 1 ? "it" : "them")
                : "";
  }
  const double auxiliary = routing.grad_norm_balance + routing.grad_norm_z;
  return routing.grad_norm_loss < nothing_beside * auxiliary
             ? fmt::format(
                   "the router of block {} learns from its auxiliary losses alone: the loss's gradient into it "
                   "has a norm of {:.2g}, those of balance and z have {:.2g}",
                   block, routing.grad_norm_loss, auxiliary)
             : "";
}

std::string RoutingAlarms::advice(Kind kind) const {
  if (!learns_) {
    return "routers are frozen (train.freeze, train.train_only): let them train (*.gate.*) to change it";
  }
  if (kind == Kind::auxiliary) {
    if (moe_.top_k == 1 && read_keys<ChoiceKeys>(moe_.own).normalize_weights && moe_.router != "switch") {
      return "write moe.normalize_weights = false, or moe.router = \"switch\": one normalised weight is 1 whatever the "
             "logit";
    }
    return fmt::format("lower {}", moe_.aux_loss > 0 ? fmt::format("moe.aux_loss ({:g})", moe_.aux_loss)
                                                     : fmt::format("moe.z_loss ({:g})", moe_.z_loss));
  }
  if (kind == Kind::few) {
    return fmt::format("the gate \"{}\" leaves tokens without experts: see its settings, or {}", moe_.router,
                       moe_.zero_experts > 0 ? "write fewer moe.zero_experts" : "write another moe.router");
  }
  if (moe_.router == "bias") {
    return fmt::format("raise moe.bias_update_rate ({:g})", read_keys<BiasKeys>(moe_.own).bias_update_rate);
  }
  return fmt::format("raise moe.aux_loss ({:g}), or lower optimizer.lr while the router settles", moe_.aux_loss);
}

std::vector<std::string> RoutingAlarms::after(const StepReport& report) {
  begun_.clear();
  std::vector<std::string> lasting;
  if (report.step < settled_) {
    return lasting;
  }
  for (std::size_t i = 0; i < report.routing.size(); ++i) {
    bool collapsed = false;
    count_idle(report.layers[i]);
    for (const Kind kind : {Kind::few, Kind::collapse, Kind::dead, Kind::auxiliary}) {
      const std::string what = wrong(kind, report.layers[i], report.routing[i]);
      int& count = in_a_row_[{report.layers[i].block, kind}];
      count = what.empty() ? 0 : count + 1;
      const int wanted = kind == Kind::dead ? 1 : reports_to_begin;  // idle experts have been counted
      // A collapsed layer has dead experts: once is enough.
      if (count < wanted || (kind == Kind::dead && collapsed)) {
        continue;
      }
      collapsed = collapsed || kind == Kind::collapse;
      lasting.push_back(fmt::format("{}; {}", what, advice(kind)));
      if (count == wanted) {
        begun_.push_back(lasting.back());
      }
    }
  }
  return lasting;
}

}  // namespace orthant
