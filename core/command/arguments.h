// What commands share: words of the command line that several take, and a configuration that is loaded and checked as
// all of them do.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/run/check_start.h"

namespace CLI {
class App;
}

namespace orthant {

// Of a value that was given: an empty one is a variable of a shell that was not set. Empty: it is right.
std::string not_empty(const std::string& value);

// What --help of a command ends with.
void add_examples(CLI::App& command, const std::string& lines);

// --ema, of commands that read a run's weights: the averages in their place (weights_reader).
void add_averages(CLI::App& command, bool& averages);

// What is said of a run that is weights only: how to begin with them.
std::string how_to_train(const std::filesystem::path& run);

// CONFIG [--set a.b=c]...: what every command that reads a configuration takes.
struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
};
std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command, bool file_required = true);

// Loads it, with the keys that the plugins found on this machine declare. Errors: ConfigError.
Config load_config(const ConfigArguments& arguments);

// The same, but a library that a file names by `path` is not opened, unless it lies where plugins are searched for: a
// file may be anybody's. Its table is not checked (PluginRequest::checked).
Config load_config_only(const ConfigArguments& arguments);

// check_start, with its notes on the standard error: what every command does with what it has loaded. begins: as
// there. Returns the layout's ranks. Errors: ConfigError.
int checked_ranks(Config& config, Ranks ranks, bool begins = true);

}  // namespace orthant
