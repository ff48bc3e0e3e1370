// What to try where verify has found a difference.
#include <algorithm>
#include <optional>

#include "apps/verify/verify.h"
#include "core/session/session.h"

namespace orthant {
namespace {

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What the reference must have for `name` to compute there what it does here: the plugin, and where it has no ranks of
// its own those that divide the batch or positions, whose gradients it sees.
std::vector<std::string> reference_of(const std::string& name, const Config& config) {
  Session session(config);
  const std::vector<AxisSpec>& axes = session.mesh().axes();
  const auto axis_of = [&](const std::string& plugin) {
    return std::find_if(axes.begin(), axes.end(), [&](const AxisSpec& axis) { return axis.name == plugin; });
  };
  std::vector<std::string> names = {name};
  for (const PluginRequest& plugin : config.plugins) {
    const auto axis = axis_of(plugin.name);
    const bool divides_tokens =
        axis != axes.end() && std::any_of(axis->splits.begin(), axis->splits.end(),
                                          [](Dim dim) { return dim == Dim::batch || dim == Dim::position; });
    if (axis_of(name) == axes.end() && divides_tokens) {
      names.push_back(plugin.name);
    }
  }
  return names;
}

// Whether the layout without the plugin is equal to one rank; nothing where it is no layout then.
std::optional<bool> equal_without(const std::string& name, Config config, int steps) {
  std::erase_if(config.plugins, [&](const PluginRequest& plugin) { return plugin.name == name; });
  try {
    return verify(config, steps).ok();
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Of a plugin whose results depend on ranks. Differences that are left where the reference has it too are its rounding
// or a fault, and what is left of the layout without it can be known.
std::string advice_on_ranks(const std::string& name, const VerifyReport& report, const Config& config,
                            const std::vector<std::string>& keep) {
  std::string options;
  std::size_t in_reference = keep.size();
  const std::vector<std::string> wanted = reference_of(name, config);
  for (const std::string& plugin : wanted) {
    if (!holds(keep, plugin)) {
      options += " --keep " + plugin;
      ++in_reference;
    }
  }
  std::string text = options.empty()
                         ? fmt::format(
                               "plugin '{}' is in the reference too: if it rounds or chooses, what differs by "
                               "rounding before it differs by far more behind it",
                               name)
                         : fmt::format(
                               "what plugin '{}' computes depends on which rank holds what: one rank is no "
                               "reference for it",
                               name);
  if (!options.empty() && in_reference < config.plugins.size()) {
    return fmt::format("{}.{} compares with {}", text, options,
                       wanted.size() == 1 ? "the plugin alone" : "the plugin and the ranks whose gradients it sees");
  }
  const std::optional<bool> equal = equal_without(name, config, std::max(report.first_step, 1));
  if (!equal) {
    return fmt::format("{}. Leave [plugins.{}] out to verify the rest", text, name);
  }
  return fmt::format("{}. Without [plugins.{}] the layout {}", text, name,
                     *equal ? "is equal to one rank" : "differs from one rank too, and that is a fault");
}

}  // namespace

std::string advice_on(const VerifyReport& report, const Config& config, const std::vector<std::string>& keep) {
  const std::vector<Mathematics> mathematics = Session(config).mathematics();
  for (std::size_t i = 0; i < config.plugins.size() && !report.ok(); ++i) {
    if (mathematics[i] == Mathematics::of_ranks) {
      return advice_on_ranks(config.plugins[i].name, report, config, keep);
    }
  }
  if (report.ok() || config.settings.moe.experts == 0) {
    return "";
  }
  if (config.settings.moe.balance_over == BalanceOver::batch && report.first_difference.starts_with("aux_loss")) {
    return "the balance loss knows the tokens of a micro-batch on all ranks (moe.balance_over = \"batch\"), and which "
           "tokens those are depends on the layout where a rank has several: one rank is no reference for it. Verify "
           "the rest: --set 'moe.balance_over=\"group\"'";
  }
  if (config.settings.run.dtype != ComputeType::bf16) {
    return report.first_step <= 1
               ? ""
               : fmt::format(
                     "the steps before step {} agree. Where the scores of two experts are equal but for rounding, a "
                     "token goes to the other one or takes another place in it. In fp32 that is rare, and a fault "
                     "shows with "
                     "other numbers too. Verify again: --set run.seed={}",
                     report.first_step, config.settings.run.seed + 1);
  }
  Session session(config);
  std::string names;
  for (const AxisSpec& axis : session.mesh().axes()) {
    if (axis.size > 1 && std::any_of(axis.splits.begin(), axis.splits.end(),
                                     [](Dim dim) { return dim == Dim::head || dim == Dim::ffn; })) {
      names += (names.empty() ? "" : ", ") + axis.name;
    }
  }
  const char* const consequence =
      "tokens whose best experts are nearly equal may go to others. Verify in fp32: --set 'run.dtype=\"fp32\"'";
  if (!names.empty()) {
    return fmt::format("axis {} adds up parts of sums, each rounded to bf16: {}", names, consequence);
  }
  if (report.first_step > 1 && report.first_difference.starts_with("routing counters")) {
    return fmt::format(
        "from the second step on weights differ by the rounding of the first, and bf16 rounds them to eight bits: {}",
        consequence);
  }
  return "";
}

}  // namespace orthant
