// The subcommands of `orthant bench` that have files of their own.
#pragma once

namespace CLI {
class App;
}

namespace orthant {

void add_bench_compare(CLI::App& bench, int& exit_code);
void add_hindcast_command(CLI::App& bench, int& exit_code);
void add_machine_command(CLI::App& bench, int& exit_code);
void add_peer_data_command(CLI::App& bench, int& exit_code);
void add_study_command(CLI::App& bench, int& exit_code);
void add_tables_command(CLI::App& bench, int& exit_code);

}  // namespace orthant
