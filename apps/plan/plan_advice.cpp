// What `orthant plan` would change where a layout sends far more than it holds.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <orthant/plugin.h>

#include <algorithm>
#include <map>

#include "apps/plan/plan_output.h"
#include "core/base/bytes_text.h"
#include "core/modules/find_library.h"
#include "core/modules/module.h"
#include "core/session/session.h"

namespace orthant {
namespace {

constexpr double large_share = 1.0 / 3;  // of what a rank sends: an axis with less is not worth a change
constexpr double far_less = 0.8;         // of what is sent now
constexpr double little_more = 1.1;      // of the peak of memory

using Sets = std::vector<std::string>;

// Bytes that leave the rank, along groups that have the axis in their name; "": along any.
double sent_along(const RankPlan& rank, const std::string& axis) {
  double sent = 0;
  for (const CollectiveSum& sum : sum_collectives(rank)) {
    sent += rank.axis[sum.group].find(axis) != std::string::npos ? static_cast<double>(sum.sent) : 0;
  }
  return sent;
}

class Lighter {
 public:
  Lighter(const ConfigArguments& arguments, const PlanOutput& plan) : arguments_(arguments), plan_(plan) {}

  std::vector<std::string> advice() {
    const double all = sent_along(plan_.rank, "");
    const MemoryPlan& memory = plan_.rank.memory;
    if (all <= static_cast<double>(memory.weights + memory.gradients)) {
      return {};
    }
    const Config config = load_config(arguments_);
    Session session(config);
    of_ranks_now_ = of_ranks(session);
    for (const PluginRequest& plugin : config.plugins) {
      if (sent_along(plan_.rank, plugin.name) < large_share * all) {
        continue;
      }
      for (const KeySpec& key : keys_of_plugin(plugin)) {
        for (const std::string& choice : key.choices) {
          if (choice != plugin.table.text(key.name)) {
            attempt(config, plugin, fmt::format("{}.{}=\"{}\"", plugin.table.path(), key.name, choice), all);
          }
        }
      }
    }
    return found_;
  }

 private:
  // The choice alone, with one of the plugin's switches turned, and each of these with a further axis over its ranks.
  void attempt(const Config& config, const PluginRequest& plugin, const std::string& choice, double now) {
    std::vector<Sets> tried = {{choice}};
    Sets sizes;
    for (const auto& [key, entry] : plugin.table.entries()) {
      if (const bool* on = std::get_if<bool>(&entry.value)) {
        tried.push_back({choice, fmt::format("{}.{}={}", plugin.table.path(), key, !*on)});
      } else if (const auto* size = std::get_if<std::int64_t>(&entry.value); size != nullptr && key == "size") {
        for (const std::string& axis : other_axes(config)) {
          sizes.push_back(fmt::format("plugins.{}.size={}", axis, *size));
        }
      }
    }
    for (std::size_t i = tried.size(); i-- > 0;) {
      for (const std::string& size : sizes) {
        tried.push_back(tried[i]);
        tried.back().push_back(size);
      }
    }
    Sets best;
    double least = far_less * now;
    for (const Sets& sets : tried) {
      const std::optional<double> sent = sent_with(sets);
      if (sent && (*sent < least || (best.empty() && *sent <= least))) {
        best = sets;
        least = *sent;
      }
    }
    if (!best.empty()) {
      found_.push_back(fmt::format("rank {} sends {} in step {}; with --set '{}' it would send {}", plan_.rank.rank,
                                   bytes_text(static_cast<std::int64_t>(now)), plan_.step, fmt::join(best, "' --set '"),
                                   bytes_text(static_cast<std::int64_t>(least))));
    }
  }

  // Nothing where it is no layout of these ranks, or needs more memory.
  std::optional<double> sent_with(const Sets& sets) const {
    ConfigArguments with = arguments_;
    with.overrides.insert(with.overrides.end(), sets.begin(), sets.end());
    try {
      const Config config = load_config(with);
      Session session(config);
      if (session.world_size() != plan_.mesh.world_size || of_ranks(session) > of_ranks_now_) {
        return std::nullopt;  // another number of ranks, or another mathematics
      }
      const RankPlan rank = plan_rank(config, plan_.rank.rank, plan_.step - 1);
      const bool fits =
          static_cast<double>(rank.memory.peak) <= little_more * static_cast<double>(plan_.rank.memory.peak);
      return fits ? std::optional(sent_along(rank, "")) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // Plugins that are found, have a size and are not in the configuration.
  static Sets other_axes(const Config& config) {
    Sets names;
    for (const std::filesystem::path& folder : module_folders()) {
      std::error_code ignored;
      for (const auto& [name, file] : libraries_in(folder, "plugin", &ignored)) {
        const std::string plugin = name;
        const bool has = std::any_of(config.plugins.begin(), config.plugins.end(),
                                     [&](const PluginRequest& one) { return one.name == plugin; });
        try {
          const std::vector<KeySpec> keys = create<Plugin>(open_module("plugin", file))->keys();
          if (!has && std::any_of(keys.begin(), keys.end(), [](const KeySpec& key) { return key.name == "size"; })) {
            names.push_back(plugin);
          }
        } catch (...) {
          continue;  // built with another Orthant, or throws: nobody has asked for it
        }
      }
    }
    return names;
  }

  // Plugins whose results depend on which rank holds what.
  static std::ptrdiff_t of_ranks(const Session& session) {
    return std::ranges::count(session.mathematics(), Mathematics::of_ranks);
  }

  const ConfigArguments& arguments_;
  std::ptrdiff_t of_ranks_now_ = 0;
  const PlanOutput& plan_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> lighter_keys(const ConfigArguments& arguments, const PlanOutput& plan) {
  return Lighter(arguments, plan).advice();
}

}  // namespace orthant
