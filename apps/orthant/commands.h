// The commands that are built into `orthant`, each in a file of its own (train_command.cpp, ...). A new one is declared
// here and added to the list in orthant.cpp. Others are programs of their own (core/command/external.h).
//
// add_X_command registers the subcommand with its options; when the user chose it, its callback does the work and sets
// exit_code. A failure is thrown as Error, and main exits with its code.
#pragma once

#include "core/command/arguments.h"

namespace orthant {

void add_launch_command(CLI::App& app, int& exit_code);
void add_train_command(CLI::App& app, int& exit_code);

}  // namespace orthant
