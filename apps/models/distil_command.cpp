// orthant distil TEACHER -o RUN: a dense student of a mixture, which then learns from its logits.
// orthant distil TEACHER CONFIG: trains the model of a configuration from the logits of TEACHER.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/pretrained/distil.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/command/program.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print(const DistilOptions& o, const DistilResult& result) {
  put("{}: {} blocks, FFNs of {} channels\n", o.output.string(), result.layers, result.d_ffn);
  put("  parameters  {} (teacher {})\n", result.parameters, result.teacher_parameters);
  put("  teacher     {}\n", result.checkpoint.string());
  put("  model       {}\n", how_to_train(o.output));
}

}  // namespace

void add_distil_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("distil");
  add_examples(*command, "  orthant distil runs/mixture -o runs/student");
  auto o = std::make_shared<DistilOptions>();
  auto config = std::make_shared<ConfigArguments>();
  command->add_option("TEACHER", o->teacher, "A run's or a checkpoint's folder")->required()->check(not_empty);
  CLI::Option* student =
      command->add_option("CONFIG", config->file, "Train this configuration's model from its logits")->check(not_empty);
  command->add_option("--set", config->overrides, "Override a value of CONFIG, as in --set run.steps=10")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(student);
  auto resume = std::make_shared<std::string>();
  command->add_option("--resume", *resume, "As of launch, of such a training")
      ->check(not_empty)
      ->type_name("auto|PATH")
      ->needs(student);
  CLI::Option* output =
      command->add_option("-o,--output", o->output, "The new run's folder, to be made")->excludes(student);
  command->add_option("--d-ffn", o->d_ffn, "Channels of the student's FFNs (those of the experts that a token meets)")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(output);
  command->add_option("--layers", o->layers, "Blocks of the student (the teacher's)")
      ->check(CLI::Range(1, 1 << 16))
      ->needs(output);
  command->add_flag("--new-ffn", o->new_ffn, "Draw the FFNs anew, not from channels of experts")->needs(output);
  command->callback([o, config, resume, output, &exit_code] {
    if (!config->file.empty()) {
      config->overrides.push_back("distil.teacher=" + nlohmann::json(o->teacher.string()).dump());  // a TOML string too
      std::vector<std::string> launch = {main_program().string(), "launch", config->file};
      for (const std::string& value : config->overrides) {
        launch.insert(launch.end(), {"--set", value});
      }
      if (!resume->empty()) {
        launch.insert(launch.end(), {"--resume", *resume});
      }
      become(launch);
    }
    if (output->empty()) {
      throw CLI::RequiredError("-o RUN, for a student's weights, or CONFIG, to train one,");
    }
    print(*o, distil(*o, keys_of_plugin, kinds_of_plugin));
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
