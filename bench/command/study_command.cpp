// orthant bench expert-scaling STUDY: the scaling study.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/command/bench_parts.h"
#include "bench/study/run_study.h"
#include "core/base/stop_signals.h"
#include "core/command/arguments.h"
#include "parallel/launch/supervisor.h"

namespace orthant {
namespace {

struct StudyArguments {
  std::string file;
  StudyOptions options;
};

std::string command_line(const StudyArguments& arguments) {
  std::string text = "orthant bench expert-scaling " + shell_quoted(arguments.file);
  for (const std::string& set : arguments.options.overrides) {
    text += " --set " + shell_quoted(set);
  }
  return text;
}

int run(const StudyArguments& arguments) {
  StudyOptions options = arguments.options;
  options.command = command_line(arguments);
  options.version = ORTHANT_VERSION;
  options.terminal = isatty(STDOUT_FILENO) == 1;
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return static_cast<int>(run_study(arguments.file, options));
}

}  // namespace

void add_study_command(CLI::App& bench, int& exit_code) {
  CLI::App* command =
      bench.add_subcommand("expert-scaling", "A study of the number of experts: a grid of runs, and what came of it");
  auto arguments = std::make_shared<StudyArguments>();
  command->add_option("STUDY", arguments->file, "The study (TOML), or the card of one (study.json) to run again")
      ->required();
  command
      ->add_option("--set", arguments->options.overrides, "Override a value in every point, as in --set data.path=FILE")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  auto* resume = command->add_flag("--resume", arguments->options.resume, "Go on: points that are done are kept");
  command
      ->add_option("--only", arguments->options.only,
                   "Train this point, also where it has failed (again and again: several)")
      ->type_name("ID")
      ->allow_extra_args(false);
  command->add_flag("--dry-run", arguments->options.dry_run, "Print the grid and run nothing")->excludes(resume);
  command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace orthant
