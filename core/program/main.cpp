// The `orthant` program: chooses the subcommand, and turns failures into a message and an exit code.
#include <fmt/format.h>

#include <orthant/error.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "core/program/commands.h"

namespace {

constexpr int bad_usage = 2;

using AddCommand = void (*)(CLI::App&, int&);
constexpr AddCommand commands[] = {
    orthant::add_bench_command,   orthant::add_config_command, orthant::add_data_command,
    orthant::add_export_command,  orthant::add_launch_command, orthant::add_plan_command,
    orthant::add_plugins_command, orthant::add_train_command,  orthant::add_verify_command,
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Orthant trains Mixture-of-Experts transformers.", "orthant");
  app.set_version_flag("--version", "orthant " ORTHANT_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  for (const AddCommand add : commands) {
    add(app, exit_code);
  }
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : bad_usage;  // --help and --version are "errors" of code 0
  } catch (const orthant::Error& error) {
    fmt::print(stderr, "orthant: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "orthant: internal error: {}\n", error.what());
    return static_cast<int>(orthant::ExitCode::failure);
  }
}
