#include "apps/check/conformance.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include <orthant/gate.h>
#include <orthant/model.h>
#include <orthant/objective.h>
#include <orthant/optimizer.h>

#include "apps/check/child.h"
#include "apps/check/experiment.h"
#include "apps/check/kind_checks.h"
#include "apps/check/layout_checks.h"
#include "core/config/registry.h"
#include "core/modules/module.h"
#include "core/session/session.h"

namespace orthant {

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::ok: return "ok";
    case Outcome::failed: return "FAILED";
    case Outcome::skipped: return "skipped";
  }
  return "?";
}

bool ConformanceReport::ok() const {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.outcome == Outcome::failed; });
}

namespace {

namespace fs = std::filesystem;

// Of one check on all layouts; far more than any takes.
constexpr int most_seconds = 300;

// Between a check's process and the suite: the outcome's number, then the detail.
std::string packed(const Finding& finding) {
  return fmt::format("{}{}", static_cast<int>(finding.outcome), finding.detail);
}
Finding unpacked(const std::string& check, const std::string& text) {
  return {check, static_cast<Outcome>(text.at(0) - '0'), text.substr(1)};
}

// What is wrong with a plugin's keys; empty: nothing.
std::string wrong_keys(const std::vector<KeySpec>& keys) {
  for (const KeySpec& key : keys) {
    if (key.name.empty() || key.help.empty()) {
      return fmt::format("key '{}' has no {}", key.name, key.name.empty() ? "name" : "help");
    }
    if (std::count_if(keys.begin(), keys.end(), [&](const KeySpec& other) { return other.name == key.name; }) > 1) {
      return fmt::format("key '{}' is declared twice", key.name);
    }
    const auto* text = std::get_if<std::string>(&key.default_value);
    if (!key.required && text != nullptr && !key.choices.empty() &&
        std::find(key.choices.begin(), key.choices.end(), *text) == key.choices.end()) {
      return fmt::format("key '{}' has the default \"{}\", which is none of its choices", key.name, *text);
    }
    std::optional<double> number;
    if (const auto* integer = std::get_if<std::int64_t>(&key.default_value)) {
      number = static_cast<double>(*integer);
    } else if (const auto* real = std::get_if<double>(&key.default_value)) {
      number = *real;
    }
    if (!key.required && number.has_value() &&
        (*number < key.minimum.value_or(*number) || *number > key.maximum.value_or(*number))) {
      return fmt::format("key '{}' has the default {}, which is outside of its bounds", key.name, *number);
    }
  }
  return "";
}

bool has_size(const std::vector<KeySpec>& keys) {
  return std::any_of(keys.begin(), keys.end(), [](const KeySpec& key) {
    return key.name == "size" && std::holds_alternative<std::int64_t>(key.default_value);
  });
}

class Suite {
 public:
  Suite(fs::path file, std::vector<std::string> overrides, std::string only)
      : plugin_{std::move(file), "", std::move(overrides)}, only_(std::move(only)) {}

  ConformanceReport run() && {
    if (load()) {
      choose_kinds();
      find_layouts();
      for (const LayoutCheck& check : layout_checks) {
        if (wanted(check.name)) {
          each(check);
        }
      }
      if (wanted("odd size")) {
        odd_size();
      }
      kinds();
      if (!only_.empty() && !found_) {
        throw ConfigError(fmt::format("plugin '{}' has no check '{}'. The checks are: {}", plugin_.name, only_,
                                      fmt::join(checks_, ", ")));
      }
    }
    return std::move(report_);
  }

 private:
  bool wanted(const std::string& check) {
    checks_.push_back(check);
    found_ = found_ || check == only_;
    return only_.empty() || check == only_;
  }

  void add(const std::string& check, Outcome outcome, const std::string& detail) {
    report_.findings.push_back({check, outcome, detail});
  }

  // False where nothing more can be looked at.
  bool load() {
    std::vector<KeySpec> keys;
    try {
      const Module loaded = open_module("plugin", plugin_.file);
      plugin_.name = report_.plugin = loaded.entry->name;
      keys = create<Plugin>(loaded)->keys();
    } catch (const std::exception& refused) {
      add("loads", Outcome::failed, refused.what());
      return false;
    }
    add("loads", Outcome::ok, fmt::format("plugin '{}', built for this Orthant", plugin_.name));
    std::string names;
    for (const KeySpec& key : keys) {
      names += (names.empty() ? "" : ", ") + key.name;
    }
    const std::string wrong = wrong_keys(keys);
    add("keys", wrong.empty() ? Outcome::ok : Outcome::failed,
        !wrong.empty()  ? wrong
        : names.empty() ? "none"
                        : names + ": each with a default and help");
    sized_ = has_size(keys);
    return true;
  }

  // The layouts train with the first gate, optimizer, objective and model that it adds, unless the user names others.
  void choose_kinds() {
    const Config config = conformance_experiment(plugin_, 0, {});  // what the user set is wrong before the plugin is
    look_at_keys_of_kinds(*config.settings.catalogue);
    std::vector<std::string> chosen;
    for (const char* noun : {Gate::noun, Optimizer::noun, Objective::noun, ModelKind::noun}) {
      const std::vector<Catalogue::Entry> entries = config.settings.catalogue->entries(noun);
      const auto own = std::find_if(entries.begin(), entries.end(),
                                    [&](const Catalogue::Entry& entry) { return entry.plugin == plugin_.name; });
      if (own != entries.end()) {
        chosen.push_back(fmt::format("{}='{}'", key_of(noun), own->name));
        if (noun == std::string(Gate::noun)) {
          chosen.push_back("moe.top_k=0");
        }
      }
    }
    plugin_.overrides.insert(plugin_.overrides.begin(), chosen.begin(), chosen.end());
  }

  // Those that no kind of the core has.
  void look_at_keys_of_kinds(const Catalogue& catalogue) {
    std::map<std::string, std::vector<KeySpec>> added;  // by table
    const std::vector<CoreKey> before = core_keys();
    for (const CoreKey& key : declared_keys(catalogue)) {
      const bool known = std::any_of(before.begin(), before.end(), [&](const CoreKey& other) {
        return other.table == key.table && other.spec.name == key.spec.name;
      });
      if (!known) {
        added[key.table].push_back(key.spec);
      }
    }
    for (const auto& [table, keys] : added) {
      std::string names;
      for (const KeySpec& key : keys) {
        names += (names.empty() ? "" : ", ") + key.name;
      }
      const std::string wrong = wrong_keys(keys);
      add("keys", wrong.empty() ? Outcome::ok : Outcome::failed,
          fmt::format("[{}] {}", table, wrong.empty() ? names + ": each with a default and help" : wrong));
    }
  }

  // Whether the axis adds no ranks but re-factors those of others. Errors: as the plugin's.
  bool carved() const {
    const Config config = conformance_experiment(plugin_, 2, {});
    Mesh mesh;
    create<Plugin>(open_module("plugin", plugin_.file))->claim(mesh, config.plugins.front().table);
    return std::any_of(mesh.axes().begin(), mesh.axes().end(),
                       [](const AxisSpec& axis) { return !axis.carve_of.empty(); });
  }

  bool is_found(const char* axis) const {
    try {
      return plugin_.name != axis && !plugin_keys(axis, "").empty();
    } catch (const ConfigError&) {
      return false;
    }
  }

  static std::string name_of_layout(int size, const Beside& beside) {
    std::string name = size > 0 ? fmt::format("size {}", size) : "";
    const auto add = [&](const char* where, const char* axis, int ranks) {
      if (ranks > 0) {
        name += fmt::format("{}{} {} {}", name.empty() ? "" : " ", where, axis, ranks);
      }
    };
    add(beside.above ? "above" : "below", partner_axis, beside.data);
    add("below", stage_axis, beside.stages);
    return name.empty() ? "alone" : name;
  }

  void put_in(int size, const Beside& beside = {}) {
    layouts_.push_back({name_of_layout(size, beside), conformance_experiment(plugin_, size, beside)});
  }

  // A layout beside other axes, which the plugin may refuse before anything starts: it must stand first, say, or brings
  // a schedule of its own. Then `refused_` tells, and it is left out. Returns whether it is in.
  bool put_in_unless_refused(int size, const Beside& beside) {
    const std::string name = name_of_layout(size, beside);
    std::string why;
    try {
      why = in_child(
          [&]() -> std::string {
            try {
              check_layout(conformance_experiment(plugin_, size, beside));
            } catch (const ConfigError& refused) {
              return refused.what();
            }
            return "";
          },
          most_seconds);
    } catch (const std::exception&) {
      // Its checks will say so.
    }
    if (!why.empty()) {
      refused_ += fmt::format("{}{} is refused: {}", refused_.empty() ? "" : "; ", name, why);
      return false;
    }
    put_in(size, beside);
    return true;
  }

  void find_layouts() {
    const bool partner = is_found(partner_axis);
    if (sized_) {
      try {
        carved_ = !in_child([&] { return std::string(carved() ? "carved" : ""); }, most_seconds).empty();
      } catch (const std::exception&) {
        // Its layouts will say so.
      }
    }
    if (!carved_) {
      if (sized_) {
        put_in(2);
        put_in(4);
      } else {
        put_in(0);
      }
      const int size = sized_ ? 2 : 0;
      if (partner) {
        const bool below = put_in_unless_refused(size, {.data = 2});
        const bool above = put_in_unless_refused(size, {.data = 2, .above = true});
        if (!below && !above) {
          add("layouts", Outcome::failed, refused_);
          return;
        }
      }
      if (is_found(stage_axis)) {
        put_in_unless_refused(size, {.stages = 2});
      }
    } else if (partner) {
      put_in(2, {.data = 2});
      put_in(4, {.data = 4});
      put_in(2, {.data = 4});
    }
    std::string names;
    for (const ConformanceLayout& layout : layouts_) {
      names += (names.empty() ? "" : "; ") + layout.name;
    }
    if (!layouts_.empty()) {
      add("layouts", Outcome::ok, names + (refused_.empty() ? "" : ". " + refused_));
    }
  }

  // One line for all layouts: the first that is wrong fails it.
  void each(const LayoutCheck& check) {
    std::string looked_at, skipped;
    for (const ConformanceLayout& layout : layouts_) {
      Finding found;
      try {
        found = unpacked(
            check.name, in_child([&] { return packed(check.run(layout.config, plugin_.name, sized_)); }, most_seconds));
      } catch (const std::exception& failure) {
        found = {check.name, Outcome::failed, failure.what()};
      }
      if (found.outcome == Outcome::failed) {
        add(check.name, Outcome::failed, layout.name + ": " + found.detail);
        return;
      }
      if (found.outcome == Outcome::skipped) {
        skipped = found.detail;
      } else {
        looked_at += (looked_at.empty() ? "" : "; ") + layout.name + (found.detail.empty() ? "" : ": " + found.detail);
      }
    }
    if (layouts_.empty()) {
      skipped =
          fmt::format("its axis is carved from others, and no plugin '{}' is found to carve it from", partner_axis);
    }
    add(check.name, looked_at.empty() ? Outcome::skipped : Outcome::ok, looked_at.empty() ? skipped : looked_at);
  }

  // Three ranks divide nothing of the experiment: the plugin refuses them before anything starts, or is right.
  void odd_size() {
    if (!sized_ || layouts_.empty()) {
      add("odd size", Outcome::skipped, "no layout of another size");
      return;
    }
    Finding found;
    try {
      const std::string text = in_child(
          [&] { return odd_size_check(conformance_experiment(plugin_, 3, {.data = carved_ ? 2 : 0}), plugin_.name); },
          most_seconds);
      found = unpacked("odd size", text);
    } catch (const std::exception& failure) {
      found = {"odd size", Outcome::failed, std::string("size 3: ") + failure.what()};
    }
    report_.findings.push_back(found);
  }

  // A line for each check of each kind that the plugin adds: "ffn gated_unit: gradients".
  void kinds() {
    const Config config = conformance_experiment(plugin_, 0, {});
    for (const std::string& noun : config.settings.catalogue->nouns()) {
      for (const Catalogue::Entry& entry : config.settings.catalogue->entries(noun)) {
        if (entry.plugin == plugin_.name) {
          kind({plugin_, noun, entry.name});
        }
      }
    }
  }

  void kind(const KindUnderTest& kind) {
    for (const KindCheck& check : kind_checks()) {
      const std::string noun = check.noun;
      if (noun.empty() ? key_of(kind.noun).empty() : noun != kind.noun) {
        continue;
      }
      const std::string name = fmt::format("{} {}: {}", kind.noun, kind.name, check.name);
      if (!wanted(name)) {
        continue;
      }
      Finding found;
      try {
        found = unpacked(name, in_child([&] { return packed(check.run(kind)); }, most_seconds));
      } catch (const std::exception& failure) {
        found = {name, Outcome::failed, failure.what()};
      }
      report_.findings.push_back(found);
    }
  }

  static std::string odd_size_check(const Config& config, const std::string& plugin) {
    try {
      check_layout(config);
    } catch (const ConfigError& refused) {
      return packed(Finding::ok("size 3 is refused before anything starts"));
    }
    Finding found = check_parity(config, plugin);
    found.detail = found.outcome == Outcome::ok ? "size 3 is accepted, and right" : "size 3: " + found.detail;
    return packed(found);
  }

  PluginUnderTest plugin_;
  ConformanceReport report_;
  std::vector<ConformanceLayout> layouts_;
  std::string refused_;  // layouts that the plugin does not take, and why
  bool sized_ = false, carved_ = false;
  std::string only_;
  std::vector<std::string> checks_;  // that there are
  bool found_ = false;               // `only_` is one of them
};

}  // namespace

ConformanceReport check_plugin(const fs::path& file, const std::vector<std::string>& overrides,
                               const std::string& only) {
  return Suite(file, overrides, only).run();
}

}  // namespace orthant
