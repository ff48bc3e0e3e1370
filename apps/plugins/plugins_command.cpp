// orthant plugins: what is found where. orthant plugins --check FILE.so: the conformance suite on one plugin.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/command/external.h"
#include "core/config/registry.h"
#include "core/config/value_text.h"
#include "core/modules/find_library.h"
#include "core/modules/module.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

std::string told_default(const KeySpec& key) {
  const auto bound = [](const char* word, const std::optional<double>& limit) {
    return limit ? fmt::format(", {} {:g}", word, *limit) : std::string();
  };
  return key.required
             ? "must be written"
             : "default " + toml_text(key.default_value) + bound("from", key.minimum) + bound("to", key.maximum);
}

// The kinds that a plugin adds with the keys that nobody wrote, "gate mine: help", and the keys that they read.
void list_kinds(const std::string& name, const std::string& file, const std::vector<KeySpec>& keys) {
  std::map<std::string, Table::Entry> entries;
  for (const KeySpec& key : keys) {
    entries[key.name] = {key.default_value, "default"};
  }
  Catalogue catalogue;
  catalogue.set_current_plugin(name);
  add_plugin_kinds(name, file, Table("plugins." + name, std::move(entries)), catalogue);
  for (const std::string& noun : catalogue.nouns()) {
    for (const Catalogue::Entry& kind : catalogue.entries(noun)) {
      put("    {} \"{}\": {}\n", noun, kind.name, kind.help);
    }
  }
  for (const CoreKey& key : declared_keys(catalogue)) {
    if (key.of_kind) {
      put("    [{}] {:<12} {} ({})\n", key.table, key.spec.name, key.spec.help, told_default(key.spec));
    }
  }
}

void list_directory(const fs::path& directory, std::set<std::string>& seen) {
  std::error_code failed;
  const std::map<std::string, fs::path> plugins = libraries_in(directory, "plugin", &failed);
  put("{}{}\n", directory.string(), failed ? ": " + failed.message() : plugins.empty() ? ": no plugin" : "");
  for (const auto& [name, file] : plugins) {
    const std::string stem = file.filename().string();
    const bool shadowed = !seen.insert(name).second;
    if (!fs::exists(file)) {
      put("  {:<12} {}  (its first use builds it)\n", name, stem);
      continue;
    }
    try {
      const std::vector<KeySpec> keys = create<Plugin>(open_module("plugin", file))->keys();
      put("  {:<12} {}{}\n", name, stem, shadowed ? "  (hidden by one found earlier)" : "");
      for (const KeySpec& key : keys) {
        put("    {:<12} {} ({})\n", key.name, key.help, told_default(key));
      }
      if (std::none_of(keys.begin(), keys.end(), [](const KeySpec& key) { return key.required; })) {
        list_kinds(name, file.string(), keys);
      }
    } catch (const Error& refused) {
      put("  {:<12} {}  refused: {}\n", name, stem, refused.what());
    }
  }
}

struct PluginsOptions {
  std::string check, only;
  std::vector<std::string> overrides;
  bool json = false;
};

// The suite is a program of its own.
void check(const PluginsOptions& options) {
  std::vector<std::string> words = {options.check};
  for (const std::string& value : options.overrides) {
    words.insert(words.end(), {"--set", value});
  }
  if (!options.only.empty()) {
    words.insert(words.end(), {"--only", options.only});
  }
  if (options.json) {
    words.emplace_back("--json");
  }
  for (const ExternalCommand& command : external_commands()) {
    if (command.name == "check") {
      run_external(command, words);
    }
  }
  fail("the program orthant-check is not installed beside this one");
}

void list() {
  std::set<std::string> seen;
  std::vector<fs::path> folders = module_folders();
  folders.pop_back();  // the library's own holds devices
  for (const fs::path& directory : folders) {
    list_directory(directory, seen);
  }
}

}  // namespace

void add_plugins_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plugins", "List the plugins that are found, with their keys, or check one");
  auto options = std::make_shared<PluginsOptions>();
  CLI::Option* file = command->add_option("--check", options->check, "Run the conformance suite on this plugin")
                          ->check(not_empty)
                          ->type_name("FILE.so");
  command
      ->add_option("--set", options->overrides,
                   "A key for the suite, the plugin's or another, as in --set plugins.mine.size=2")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(file);
  command->add_option("--only", options->only, "The one check to run, by the name that the suite prints: --only late")
      ->type_name("CHECK")
      ->needs(file);
  command->add_flag("--json", options->json, "Print the suite's result as JSON")->needs(file);
  add_examples(*command,
               "  orthant plugins\n"
               "  orthant plugins --check liborthant_plugin_mine.so");
  command->callback([options, &exit_code] {
    exit_code = 0;
    if (options->check.empty()) {
      list();
    } else {
      check(*options);
    }
  });
}

}  // namespace orthant
