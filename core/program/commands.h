// The subcommands of `orthant`, each in a file of its own (train_command.cpp, ...). A new one is declared here and
// added to the list in main.cpp.
//
// add_X_command registers the subcommand with its options; when the user chose it, its callback does the work and sets
// exit_code. A failure is thrown as Error, and main exits with its code.
#pragma once

#include <cstdint>
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

void add_bench_command(CLI::App& app, int& exit_code);
void add_bench_compare(CLI::App& bench, int& exit_code);  // below `bench`
void add_checkpoint_command(CLI::App& app, int& exit_code);
void add_config_command(CLI::App& app, int& exit_code);
void add_data_command(CLI::App& app, int& exit_code);
void add_distil_command(CLI::App& app, int& exit_code);
void add_eval_command(CLI::App& app, int& exit_code);
void add_export_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, int& exit_code);
void add_import_command(CLI::App& app, int& exit_code);
void add_upcycle_command(CLI::App& app, int& exit_code);
void add_launch_command(CLI::App& app, int& exit_code);
void add_peer_data_command(CLI::App& bench, int& exit_code);  // of `orthant bench`
void add_plan_command(CLI::App& app, int& exit_code);
void add_plugins_command(CLI::App& app, int& exit_code);
void add_report_command(CLI::App& app, int& exit_code);
// Below `bench`.
void add_study_command(CLI::App& bench, int& exit_code);
void add_route_command(CLI::App& app, int& exit_code);
void add_serve_command(CLI::App& app, int& exit_code);
void add_train_command(CLI::App& app, int& exit_code);
void add_verify_command(CLI::App& app, int& exit_code);

// Of a value that was given: an empty one is a variable of a shell that was not set. Empty: it is right.
std::string not_empty(const std::string& value);

// --latent-memory SIZE, of commands that generate: EngineOptions::latent_room.
void add_latent_memory(CLI::App& command, std::int64_t& bytes);

// --prefix-memory SIZE, of serve: PrefixCache's room.
void add_prefix_memory(CLI::App& command, std::int64_t& bytes);

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

// What `orthant launch` does with it, on this machine. Returns its exit code.
int launch_here(const ConfigArguments& arguments);

// Loads it, with the keys that the plugins found on this machine declare. Errors: ConfigError.
Config load_config(const ConfigArguments& arguments);

// The same, but a library that a file names by `path` is not opened, unless it lies where plugins are searched for: a
// file may be anybody's. Its table is not checked (PluginRequest::checked).
Config load_config_only(const ConfigArguments& arguments);

// check_start, with its notes on the standard error: what every command does with what it has loaded. begins: as
// there. Returns the layout's ranks. Errors: ConfigError.
int checked_ranks(Config& config, Ranks ranks, bool begins = true);

}  // namespace orthant
