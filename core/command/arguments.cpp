#include "core/command/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/base/output.h"
#include "core/modules/module.h"
#include "core/session/session.h"

namespace orthant {
namespace {

bool is_searched(const std::filesystem::path& file) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(file, failed).parent_path();
  const std::vector<std::filesystem::path> folders = module_folders();
  return !failed && std::any_of(folders.begin(), folders.end(), [&](const std::filesystem::path& folder) {
    std::error_code ignored;
    return std::filesystem::equivalent(folder, real, ignored);
  });
}

}  // namespace

std::string not_empty(const std::string& value) {
  return value.empty() ? "the value is empty" : "";
}

void add_examples(CLI::App& command, const std::string& lines) {
  command.footer("Examples:\n" + lines);
}

void add_averages(CLI::App& command, bool& averages) {
  command.add_flag("--ema", averages, "Take the moving averages of the weights, which optimizer.ema_decay keeps");
}

std::string how_to_train(const std::filesystem::path& run) {
  return fmt::format("{}: extend it, and say [train] from = \"{}\"", (run / "model.toml").string(),
                     std::filesystem::absolute(run).lexically_normal().string());  // in a file it is relative to that
}

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command, bool file_required) {
  auto arguments = std::make_shared<ConfigArguments>();
  command.add_option("CONFIG", arguments->file, "Configuration file (TOML)")->required(file_required);
  command.add_option("--set", arguments->overrides, "Override a value, as in --set run.steps=10")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  return arguments;
}

Config load_config(const ConfigArguments& arguments) {
  return load_config(arguments.file, arguments.overrides, keys_of_plugin, kinds_of_plugin, check_layout);
}

Config load_config_only(const ConfigArguments& arguments) {
  return load_config(
      arguments.file, arguments.overrides,
      [](const PluginRequest& plugin) -> std::optional<std::vector<KeySpec>> {
        if (!plugin.path.empty() && !plugin.path_set && !is_searched(plugin.path)) {
          return std::nullopt;
        }
        return keys_of_plugin(plugin);
      },
      kinds_of_plugin, check_layout);
}

int checked_ranks(Config& config, Ranks ranks, bool begins) {
  const StartCheck checked = check_start(config, ranks, begins);
  for (const std::string& note : checked.notes) {
    say("orthant: note: {}", note);
  }
  return checked.world_size;
}

}  // namespace orthant
