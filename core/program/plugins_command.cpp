// orthant plugins: what is found where.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/config/registry.h"
#include "core/plugin_loader.h"
#include "core/program/commands.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "liborthant_plugin_", suffix = ".so";

void list_directory(const fs::path& directory, std::set<std::string>& seen) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) {
      files.push_back(entry.path());
    }
  }
  fmt::print("{}{}\n", directory.string(), failed ? ": " + failed.message() : files.empty() ? ": no plugin" : "");
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const std::string stem = file.filename().string();
    const std::string name = stem.substr(prefix.size(), stem.size() - prefix.size() - suffix.size());
    const bool shadowed = !seen.insert(name).second;
    try {
      const std::vector<KeySpec> keys = create_plugin(open_plugin(file))->keys();
      fmt::print("  {:<12} {}{}\n", name, stem, shadowed ? "  (hidden by one found earlier)" : "");
      for (const KeySpec& key : keys) {
        fmt::print("    {:<12} {} ({})\n", key.name, key.help,
                   key.required ? "must be written" : "default " + toml_text(key.default_value));
      }
    } catch (const Error& refused) {
      fmt::print("  {:<12} {}  refused: {}\n", name, stem, refused.what());
    }
  }
}

}  // namespace

void add_plugins_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plugins", "List the plugins that are found, and their keys");
  command->callback([&exit_code] {
    std::set<std::string> seen;
    for (const fs::path& directory : plugin_directories()) {
      list_directory(directory, seen);
    }
    exit_code = 0;
  });
}

}  // namespace orthant
