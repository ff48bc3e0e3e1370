// orthant check FILE.so: the conformance suite on one plugin.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/check/conformance.h"
#include "core/base/output.h"
#include "core/command/arguments.h"

namespace orthant {
namespace {

struct CheckOptions {
  std::string file, only;
  std::vector<std::string> overrides;
  bool json = false;
};

int check(const CheckOptions& options) {
  const ConformanceReport report = check_plugin(options.file, options.overrides, options.only);
  if (!options.json) {
    for (const Finding& finding : report.findings) {
      put("{:<8} {:<11} {}\n", name_of(finding.outcome), finding.check, finding.detail);
    }
    return report.ok() ? 0 : 1;
  }
  nlohmann::ordered_json json;
  json["plugin"] = report.plugin;
  json["ok"] = report.ok();
  for (const Finding& finding : report.findings) {
    json["checks"].push_back(
        {{"check", finding.check}, {"outcome", name_of(finding.outcome)}, {"detail", finding.detail}});
  }
  put("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return report.ok() ? 0 : 1;
}

}  // namespace

void add_check_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("check");
  add_examples(*command, "  orthant check liborthant_plugin_mine.so --set plugins.mine.size=2");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("FILE", options->file, "The plugin's library")
      ->required()
      ->check(not_empty)
      ->type_name("FILE.so");
  command
      ->add_option("--set", options->overrides,
                   "A key for the suite, the plugin's or another, as in --set plugins.mine.size=2")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--only", options->only, "The one check to run, by the name that the suite prints: --only late")
      ->type_name("CHECK");
  command->add_flag("--json", options->json, "Print the suite's result as JSON");
  command->callback([options, &exit_code] { exit_code = check(*options); });
}

}  // namespace orthant
