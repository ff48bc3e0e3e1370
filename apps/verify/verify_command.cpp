// orthant verify CONFIG [--json] [--steps N] [--keep NAME]: the layout against one rank.
#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/verify/verify.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/config/batch_text.h"
#include "core/session/session.h"

namespace orthant {
namespace {

struct VerifyOptions {
  bool json = false;
  int steps = 3;
  std::vector<std::string> keep;
};

void print_table(const VerifyReport& report) {
  put("{:<18} {:>9} {:>12} {:>9}  {}\n", "quantity", "compared", "difference", "allowed", "largest at");
  for (const Comparison& row : report.rows) {
    put("{:<18} {:>9} {:>12.2e} {:>9.0e}  {}{}\n", row.quantity, row.compared, row.difference, row.tolerance, row.where,
        row.ok() ? "" : "  <-- DIFFERS");
  }
}

void print_json(const VerifyReport& report, int world_size, const std::string& advice) {
  nlohmann::ordered_json json;
  json["ok"] = report.ok();
  json["world_size"] = world_size;
  for (const Comparison& row : report.rows) {
    nlohmann::ordered_json difference = nullptr;  // not a number, or infinite
    if (std::isfinite(row.difference)) {
      difference = row.difference;
    }
    json["quantities"].push_back({{"quantity", row.quantity},
                                  {"compared", row.compared},
                                  {"difference", difference},
                                  {"allowed", row.tolerance},
                                  {"where", row.where},
                                  {"ok", row.ok()}});
  }
  if (!report.ok()) {
    json["first_difference"] = report.first_difference;
    json["axes"] = report.axes;
    if (!advice.empty()) {
      json["advice"] = advice;
    }
  }
  put("{}\n", json.dump(2));
}

int run(const ConfigArguments& arguments, const VerifyOptions& options) {
  Config config = load_config(arguments);
  const int world_size = checked_ranks(config, Ranks::threads);
  if (!options.json) {
    const Config reference = one_rank(config, options.keep);
    std::string with;
    for (const PluginRequest& plugin : reference.plugins) {
      with += (with.empty() ? " with " : ", ") + plugin.name;
    }
    const int ranks = Session(reference).world_size();
    put("{} ranks against {}{}, {} steps, {}\n", world_size, ranks == 1 ? "one" : std::to_string(ranks), with,
        options.steps, config.settings.run.dtype == ComputeType::fp32 ? "fp32" : "bf16");
    if (const BatchSettings batch = growth_within(config.settings.batch, options.steps); !batch.grow_to.empty()) {
      put("the batch grows within them: {}\n", batch_text(batch));
    }
  }
  const VerifyReport report = verify(config, options.steps, options.keep);
  const std::string advice = advice_on(report, config, options.keep);
  if (options.json) {
    print_json(report, world_size, advice);
  } else {
    print_table(report);
    if (report.ok()) {
      put("equal\n");
    } else {
      put("first difference, by axis {}: {}\n", report.axes.empty() ? "none" : report.axes, report.first_difference);
      if (!advice.empty()) {
        put("{}\n", advice);
      }
    }
  }
  return report.ok() ? 0 : 1;
}

}  // namespace

void add_verify_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("verify");
  add_examples(*command, "  orthant verify configs/quickstart.toml --set plugins.expert.size=4");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<VerifyOptions>();
  command->add_flag("--json", options->json, "Print the result as JSON");
  command->add_option("--steps", options->steps, "Optimizer steps to compare")->check(CLI::Range(1, 1000));
  command
      ->add_option("--keep", options->keep, "A plugin that the reference has too, as it is; may be given several times")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->callback([arguments, options, &exit_code] { exit_code = run(*arguments, *options); });
}

}  // namespace orthant
