// orthant train CONFIG [--set a.b=c]... [--resume auto|PATH]: trains. Started by hand it launches the layout's ranks;
// started by `orthant launch` it is one of them.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/orthant/commands.h"
#include "core/base/stop_signals.h"
#include "core/command/program.h"
#include "core/dry_run/promise.h"
#include "core/run/epochs.h"
#include "core/run/file_work.h"
#include "core/run/rank.h"
#include "core/run/train_run.h"

namespace orthant {
namespace {

// Becomes `orthant launch` with the same arguments.
[[noreturn]] void launch_instead(const ConfigArguments& arguments, const std::string& resume) {
  std::vector<std::string> words = own_command({"launch", arguments.file});
  for (const std::string& value : arguments.overrides) {
    words.insert(words.end(), {"--set", value});
  }
  if (!resume.empty()) {
    words.insert(words.end(), {"--resume", resume});
  }
  become(words);
}

// From here on a request to stop waits until the run asks for it; threads made later inherit this.
void block_stop_signals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int train(const ConfigArguments& arguments, const std::string& resume) {
  const std::optional<RankEnvironment> rank = rank_environment();
  if (!rank.has_value()) {
    launch_instead(arguments, resume);
  }
  block_stop_signals();
  Config config = load_config(arguments);
  if (config.settings.memory.recompute == "fit") {
    promise_memory(config);  // every rank finds the same
  }
  RunOptions options{
      .resume = resume, .run_directory = rank->run_directory, .job_id = rank->job_id, .columns = rank->columns};
  if (options.run_directory.empty()) {
    options.run_directory = std::filesystem::path(config.settings.run.directory) / config.settings.run.name;
  }
  ExitCode code = ExitCode::failure;
  with_communicator(config, *rank, [&](Communicator& communicator) {
    {
      const FileWork work(communicator, config.settings.run.disk_timeout_seconds);
      resolve_epochs(config, true);  // every rank finds the same
    }
    code = train_run(config, options, communicator);
  });
  return static_cast<int>(code);
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "Train a model");
  auto arguments = add_config_arguments(*command);
  auto resume = std::make_shared<std::string>();
  command
      ->add_option(
          "--resume", *resume,
          "Go on from the newest checkpoint (auto), from a given one, or from that where the run has none (auto:PATH)")
      ->check(not_empty)
      ->type_name("auto|PATH|auto:PATH");
  command->callback([arguments, resume, &exit_code] { exit_code = train(*arguments, *resume); });
}

}  // namespace orthant
