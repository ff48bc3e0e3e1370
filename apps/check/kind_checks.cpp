#include "apps/check/kind_checks.h"

#include <algorithm>

#include "apps/check/gate_checks.h"
#include "apps/check/layout_checks.h"
#include "apps/check/optimizer_checks.h"
#include "apps/verify/verify.h"
#include "core/config/registry.h"
#include "core/modules/find_library.h"
#include "core/modules/module.h"
#include "core/session/session.h"

namespace orthant {
namespace {

// The plugins of this Orthant that have a key `size`, but for the partner, which is outermost in every layout.
std::vector<std::string> axes_beside() {
  std::vector<std::string> axes;
  for (const auto& [name, file] : libraries_in(own_plugins(), "plugin")) {
    if (!std::filesystem::exists(file)) {
      continue;  // not built yet
    }
    const std::vector<KeySpec> keys = plugin_keys(name, file.string());
    if (name != partner_axis &&
        std::any_of(keys.begin(), keys.end(), [](const KeySpec& key) { return key.name == "size"; })) {
      axes.push_back(name);
    }
  }
  return axes;
}

// Whether what the plugin computes depends on which rank holds what.
bool depends_on_ranks(const Config& config, const std::string& plugin) {
  const std::vector<Mathematics> mathematics = Session(config).mathematics();
  for (std::size_t i = 0; i < config.plugins.size(); ++i) {
    if (config.plugins[i].name == plugin && mathematics[i] == Mathematics::of_ranks) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string key_of(const std::string& noun) {
  for (const CoreKey& key : core_keys()) {
    if (key.noun == noun) {
      return key.table + "." + key.spec.name;
    }
  }
  return "";
}

Config KindUnderTest::experiment(const std::vector<std::string>& overrides) const {
  PluginUnderTest with = plugin;
  if (const std::string key = key_of(noun); !key.empty()) {
    with.overrides.push_back(fmt::format("{}=\"{}\"", key, name));
  }
  with.overrides.insert(with.overrides.end(), overrides.begin(), overrides.end());
  return conformance_experiment(with, 0, {});
}

Finding check_kind_parity(const KindUnderTest& kind) {
  std::string looked_at, refused;
  std::vector<std::string> inner = axes_beside();
  inner.insert(inner.begin(), "");
  for (const std::string& axis : inner) {
    std::vector<std::string> overrides = {fmt::format("plugins.{}.size=2", partner_axis)};
    std::string layout = fmt::format("{} 2", partner_axis);
    if (!axis.empty()) {
      overrides.push_back(fmt::format("plugins.{}.size=2", axis));
      layout += fmt::format(" x {} 2", axis);
    }
    const Config config = kind.experiment(overrides);
    try {
      check_layout(config);
      if (!axis.empty() && depends_on_ranks(config, axis)) {
        continue;  // workers with models of their own, say: one rank is no reference
      }
    } catch (const ConfigError&) {
      refused += (refused.empty() ? "" : ", ") + layout;
      continue;
    }
    const VerifyReport report = verify(config, checked_steps);
    if (!report.ok()) {
      return Finding::failed(fmt::format("{}: {} (by {})", layout, report.first_difference, report.axes));
    }
    looked_at += (looked_at.empty() ? "" : "; ") + layout;
  }
  return Finding::ok(looked_at + (refused.empty() ? "" : "; refused before anything starts: " + refused));
}

Finding check_kind_guarded(const KindUnderTest& kind) {
  const Config config = kind.experiment();
  Finding found = check_guarded(config);
  return found.outcome == Outcome::ok ? check_repeats(config) : found;
}

Finding check_gate_contract(const KindUnderTest& kind) {
  return check_gate(kind.experiment().settings);
}

Finding check_optimizer_contract(const KindUnderTest& kind) {
  return check_optimizer(kind.experiment(), kind.experiment(), kind.name);
}

std::span<const KindCheck> kind_checks() {
  static constexpr KindCheck checks[] = {
      {"", "parity", check_kind_parity},
      {"", "guarded", check_kind_guarded},
      {"gate", "contract", check_gate_contract},
      {"optimizer", "contract", check_optimizer_contract},
      {"attention", "parameters", check_part_parameters},
      {"attention", "gradients", check_gradients},
      {"attention", "recompute", check_part_recompute},
      {"ffn", "parameters", check_part_parameters},
      {"ffn", "gradients", check_gradients},
      {"ffn", "recompute", check_part_recompute},
      {"objective", "gradients", check_gradients},
      {"objective", "figures", check_objective_figures},
      {"model", "gradients", check_gradients},
      {"model", "recompute", check_part_recompute},
      {"source", "sequences", check_source_sequences},
      {"hook", "ranks", check_hook_ranks},
      {"hook", "restore", check_hook_restore},
  };
  return checks;
}

}  // namespace orthant
