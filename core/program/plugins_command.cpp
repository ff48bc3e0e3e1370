// orthant plugins: what is found where. orthant plugins --check FILE.so: the conformance suite on one plugin.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/output.h"
#include "core/command/program.h"
#include "core/config/value_text.h"
#include "core/modules/find_library.h"
#include "core/modules/module.h"
#include "core/program/commands.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// The kinds that a plugin adds with the keys that nobody wrote: "gate mine: help".
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
}

void list_directory(const fs::path& directory, std::set<std::string>& seen) {
  std::error_code failed;
  const std::map<std::string, fs::path> plugins = libraries_in(directory, "plugin", &failed);
  put("{}{}\n", directory.string(), failed ? ": " + failed.message() : plugins.empty() ? ": no plugin" : "");
  for (const auto& [name, file] : plugins) {
    const std::string stem = file.filename().string();
    const bool shadowed = !seen.insert(name).second;
    try {
      const std::vector<KeySpec> keys = create<Plugin>(open_module("plugin", file))->keys();
      put("  {:<12} {}{}\n", name, stem, shadowed ? "  (hidden by one found earlier)" : "");
      for (const KeySpec& key : keys) {
        put("    {:<12} {} ({})\n", key.name, key.help,
            key.required ? "must be written" : "default " + toml_text(key.default_value));
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
[[noreturn]] void check(const PluginsOptions& options) {
  std::vector<std::string> words = {own_program().string(), "check", options.check};
  for (const std::string& value : options.overrides) {
    words.insert(words.end(), {"--set", value});
  }
  if (!options.only.empty()) {
    words.insert(words.end(), {"--only", options.only});
  }
  if (options.json) {
    words.emplace_back("--json");
  }
  become(words);
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
  CLI::App* command = app.add_subcommand("plugins", "List the plugins that are found, and their keys; check one");
  auto options = std::make_shared<PluginsOptions>();
  CLI::Option* file = command->add_option("--check", options->check, "Run the conformance suite on this plugin")
                          ->check(not_empty)
                          ->type_name("FILE.so");
  command->add_option("--set", options->overrides, "A key of the plugin for the suite, as in --set plugins.mine.size=2")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(file);
  command->add_option("--only", options->only, "The one check to run, by the name that the suite prints: --only late")
      ->type_name("CHECK")
      ->needs(file);
  command->add_flag("--json", options->json, "Print the suite's result as JSON")->needs(file);
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
