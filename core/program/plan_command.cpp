// orthant plan CONFIG [--rank R] [--json]: what a layout would hold and send, without starting a rank.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "core/program/commands.h"
#include "core/program/plan_output.h"

namespace orthant {
namespace {

struct Options {
  int rank = 0;
  bool json = false;
};

void run(const ConfigArguments& arguments, const Options& options) {
  const Config config = load_config(arguments);
  PlanOutput plan;
  plan.file = arguments.file;
  plan.mesh = plan_mesh(config);
  plan.rank = plan_rank(config, options.rank);
  plan.classes = plan_classes(config);
  const std::string text = options.json ? plan_json(plan) : plan_text(plan);
  require(std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0,
          "cannot write to the standard output");
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "Show what a layout would hold and send, without starting it");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<Options>();
  command->add_option("--rank", options->rank, "The rank whose slices and collectives are listed")->type_name("R");
  command->add_flag("--json", options->json, "Print everything as JSON (docs/plan.md)");
  command->callback([arguments, options, &exit_code] {
    run(*arguments, *options);
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
