// The conformance suite: what any plugin must do, whatever it is for. `orthant plugins --check FILE.so` prints it.
//
// The plugin is loaded from its file, claimed at sizes 2, 4 and (to be refused, or right) 3, alone, below and above a
// data axis of two ranks (a carved axis: below as many as it needs), and below two stages of a pipeline which share a
// tied table, in a tiny built-in experiment whose ranks are threads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace orthant {

enum class Outcome { ok, failed, skipped };
const char* name_of(Outcome outcome);  // "ok", "FAILED", "skipped"

struct Finding {
  std::string check;  // "loads", "keys", "claims", "adjoints", ...: docs/guides/plugins.md explains each
  Outcome outcome = Outcome::ok;
  std::string detail;  // what was looked at, what is wrong, or why it was skipped

  // Of a check that its caller names.
  static Finding ok(std::string detail = "") { return {"", Outcome::ok, std::move(detail)}; }
  static Finding failed(std::string detail) { return {"", Outcome::failed, std::move(detail)}; }
  static Finding skipped(std::string detail) { return {"", Outcome::skipped, std::move(detail)}; }
};

struct ConformanceReport {
  std::string plugin;  // its name; empty where it does not load
  std::vector<Finding> findings;
  bool ok() const;
};

// `overrides`: as --set takes them, for the plugin's keys or the experiment. Errors: ConfigError for overrides that are
// wrong; what the plugin does wrong is a finding. `only`: the one check that is wanted ("late", "gate mine: contract"),
// after those that all others need (loads, keys, layouts); empty: all. Errors: ConfigError where there is none such.
ConformanceReport check_plugin(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                               const std::string& only = "");

}  // namespace orthant
