// orthant export RUN -o DIR [--dtype fp32|bf16] [--adapter] [--ema] [--force]: the weights of a run as transformers
// reads them.
// orthant export CONFIG.toml --adapter: whether peft could read the adapters of such a run, before it has trained.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/pretrained/adapter_files.h"
#include "apps/pretrained/export.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print(const ExportOptions& options, const ExportResult& result) {
  for (const std::string& reason : result.passed_over) {
    say("orthant: warning: checkpoint passed over: {}", reason);
  }
  put("{}: {} parameters in {} after step {}, model type {}, from {}{}\n", options.output.string(), result.parameters,
      result.dtypes, result.step, result.model_type, options.averages ? "the averages of the weights in " : "",
      result.checkpoint.string());
  for (const std::string& note : result.notes) {
    put("  note: {}\n", note);
  }
}

// What `orthant launch` asks before a run with adapters begins.
// Returns the exit code: whether they can.
int say_whether_adapters_can_go_alone(const ConfigArguments& arguments) {
  Config config = load_config(arguments);
  checked_ranks(config, Ranks::elsewhere);
  const bool any = config.settings.lora.rank > 0;
  const std::string why = adapter_refusal(config);
  put("{}\n", !any          ? "such a run has no adapters: [lora] rank is 0"
              : why.empty() ? "the adapters of such a run can be exported alone"
                            : "orthant export will not write the adapters of such a run alone: " + why);
  return any && why.empty() ? 0 : 1;
}

}  // namespace

void add_export_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("export");
  add_examples(*command, "  orthant export runs/quickstart -o quickstart-hf");
  auto options = std::make_shared<ExportOptions>();
  auto dtype = std::make_shared<std::string>();
  command
      ->add_option("RUN", options->run,
                   "A run's folder (its newest checkpoint), or a checkpoint's; with --adapter "
                   "alone a configuration, to be told whether its adapters can be exported")
      ->required()
      ->check(not_empty);
  CLI::Option* output = command->add_option("-o,--output", options->output, "The folder to make")->check(not_empty);
  auto overrides = std::make_shared<std::vector<std::string>>();
  command->add_option("--set", *overrides, "Override a value of the configuration, as in --set lora.rank=8")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->excludes(output);
  command
      ->add_option("--dtype", *dtype,
                   "Type of the weights: fp32, bf16; without it that of the model which the run began from, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->add_flag("--adapter", options->adapter,
                    "Write the adapters of [lora] alone, as peft reads them; without it they are added to the weights");
  add_averages(*command, options->averages);
  command->add_flag("--force", options->replace_existing, "Replace the model in a folder that holds files already");
  command->callback([options, dtype, output, overrides, &exit_code] {
    exit_code = static_cast<int>(ExitCode::ok);
    if (output->empty() && options->adapter && std::filesystem::is_regular_file(options->run)) {
      exit_code = say_whether_adapters_can_go_alone({options->run.string(), *overrides});
      return;
    }
    if (output->empty()) {
      throw CLI::RequiredError("-o DIR");
    }
    if (!dtype->empty()) {
      options->dtype = *dtype == "bf16" ? DType::bf16 : DType::f32;
    }
    print(*options, export_run(*options, keys_of_plugin, kinds_of_plugin));
  });
}

}  // namespace orthant
