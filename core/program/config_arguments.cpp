#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/output.h"
#include "core/plugin_loader.h"
#include "core/program/commands.h"

namespace orthant {

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command, bool file_required) {
  auto arguments = std::make_shared<ConfigArguments>();
  command.add_option("CONFIG", arguments->file, "Configuration file (TOML)")->required(file_required);
  command.add_option("--set", arguments->overrides, "Override a value, as in --set run.steps=10")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  return arguments;
}

Config load_config(const ConfigArguments& arguments) {
  return load_config(arguments.file, arguments.overrides,
                     [](const PluginRequest& plugin) { return plugin_keys(plugin.name, plugin.path); });
}

int checked_ranks(const Config& config, Ranks ranks) {
  const StartCheck checked = check_start(config, ranks);
  for (const std::string& note : checked.notes) {
    say("orthant: note: {}", note);
  }
  return checked.world_size;
}

}  // namespace orthant
