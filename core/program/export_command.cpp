// orthant export RUN -o DIR [--dtype fp32|bf16] [--adapter] [--ema] [--force]: the weights of a run as transformers
// reads them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "core/base/output.h"
#include "core/pretrained/export.h"
#include "core/program/commands.h"
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

}  // namespace

void add_export_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("export", "Write the weights of a run as transformers reads them");
  auto options = std::make_shared<ExportOptions>();
  auto dtype = std::make_shared<std::string>();
  command->add_option("RUN", options->run, "A run's folder (its newest checkpoint), or a checkpoint's")
      ->required()
      ->check(not_empty);
  command->add_option("-o,--output", options->output, "The folder to make")->required()->check(not_empty);
  command
      ->add_option("--dtype", *dtype,
                   "Type of the weights: fp32, bf16; without it that of the model which the run began from, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->add_flag("--adapter", options->adapter,
                    "Write the adapters of [lora] alone, as peft reads them; without it they are added to the weights");
  add_averages(*command, options->averages);
  command->add_flag("--force", options->replace_existing, "Replace the model in a folder that holds files already");
  command->callback([options, dtype, &exit_code] {
    if (!dtype->empty()) {
      options->dtype = *dtype == "bf16" ? DType::bf16 : DType::f32;
    }
    print(*options, export_run(*options, keys_of_plugin, kinds_of_plugin));
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
