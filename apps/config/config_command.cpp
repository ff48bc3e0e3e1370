// orthant config CONFIG [--resolved] [--schema] [--keys] [--set a.b=c]...: checks a configuration and shows it.
#include <fmt/format.h>
#include <orthant/gate.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "apps/config/keys_text.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/config/batch_text.h"
#include "core/config/config.h"
#include "core/config/print.h"
#include "core/config/validate.h"
#include "core/modules/module.h"
#include "core/run/epochs.h"

namespace orthant {
namespace {

struct ConfigOptions {
  bool resolved = false;
  bool schema = false;
  bool keys = false;
  bool load_plugins = false;
};

// A gate whose plugin was not asked is not known.
std::string choice(const Settings& s) {
  const bool known = s.catalogue->has<Gate>(s.moe.router);
  return known && gate_of(s).config(s).experts_choose ? "they choose" : fmt::format("top {}", s.moe.top_k);
}

// `ranks`: nothing where not every plugin was asked.
std::string summary(const Config& config, std::optional<int> ranks) {
  const Settings& s = config.settings;
  std::string text = fmt::format("ok: {}\n", config.file);
  text += fmt::format("  run     {}, {} steps, {} on {}, {}\n", s.run.name, s.run.steps,
                      s.run.dtype == ComputeType::bf16 ? "bf16" : "fp32", s.run.device, s.run.communicator);
  text +=
      fmt::format("  model   {} layers, d_model {}, {} heads, vocabulary {}{}\n", s.model.layers, s.model.d_model,
                  s.model.heads, s.model.vocab_size,
                  s.moe.experts == 0 ? std::string(", dense")
                                     : fmt::format(", {} experts ({}) in every {}", s.moe.experts, choice(s),
                                                   s.moe.every == 1 ? "block" : fmt::format("{}. block", s.moe.every)) +
                                           (s.moe.first_dense == 0 ? "" : fmt::format(" after {}", s.moe.first_dense)));
  text += fmt::format("  batch   {} sequences of {} tokens a step\n", s.batch.sequences, s.data.sequence_length);
  if (!s.batch.grow_to.empty()) {
    text += fmt::format("  grows   {}; {} tokens in the {} steps\n", batch_text(s.batch),
                        sequences_before(s.batch, s.run.steps) * s.data.sequence_length, s.run.steps);
  }
  if (const std::string data = ranks ? data_text(s) : ""; !data.empty()) {
    text += fmt::format("  {:<8}{}\n", "data", data.substr(data.find(' ') + 1));
  }
  text += fmt::format("  ranks   {}\n", ranks ? std::to_string(*ranks) : "not known without every plugin");
  for (const PluginRequest& plugin : config.plugins) {
    text += fmt::format("  plugin  {}{}", plugin.name, plugin.checked ? "" : ", not checked");
    for (const auto& [key, entry] : plugin.table.entries()) {
      if (const auto* size = std::get_if<std::int64_t>(&entry.value); size != nullptr && key == "size") {
        text += fmt::format(", size {}", *size);
      }
    }
    text += "\n";
  }
  return text;
}

std::string output(const ConfigArguments& arguments, const ConfigOptions& options) {
  if (arguments.file.empty()) {
    if (options.schema || options.keys) {
      return options.schema ? schema_json({}) : keys_markdown();
    }
    throw CLI::RequiredError("CONFIG");
  }
  Config config = options.load_plugins ? load_config(arguments) : load_config_only(arguments);
  if (options.keys) {
    return keys_markdown(*config.settings.catalogue);
  }
  if (options.schema) {
    PluginKeyList plugins;
    for (const PluginRequest& plugin : config.plugins) {
      if (plugin.checked) {
        plugins.emplace_back(plugin.name, plugin_keys(plugin.name, plugin.path));
      }
    }
    return schema_json(plugins, *config.settings.catalogue);
  }
  for (const std::string& warning : warnings(config.settings)) {
    say("orthant: warning: {}", warning);
  }
  bool whole = true;
  for (const PluginRequest& plugin : config.plugins) {
    if (!plugin.checked) {
      whole = false;
      say("orthant: note: [{}] is shown as written, and the layout is not checked: {} names the library {}, and this "
          "command runs no code that a file names. Add --load-plugins if you trust it",
          plugin.table.path(), plugin.table.origin("path"), plugin.path);
    }
  }
  const std::optional<int> ranks =
      whole ? std::optional<int>(checked_ranks(config, Ranks::elsewhere)) : std::optional<int>();
  return options.resolved ? resolved_toml(config) : summary(config, ranks);
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("config", "Check a configuration, and show it");
  auto arguments = add_config_arguments(*command, false);
  auto options = std::make_shared<ConfigOptions>();
  auto* resolved = command->add_flag("--resolved", options->resolved, "Print every value and where it comes from");
  auto* schema =
      command->add_flag("--schema", options->schema, "Print the JSON schema (with CONFIG: of its plugins too)");
  auto* keys = command->add_flag("--keys", options->keys,
                                 "Print the core's keys as Markdown (with CONFIG: those of its plugins' kinds too)");
  command->add_flag("--load-plugins", options->load_plugins,
                    "Open the libraries that CONFIG names by path too, and check everything");
  add_examples(*command, "  orthant config configs/quickstart.toml --resolved");
  resolved->excludes(schema)->excludes(keys);
  schema->excludes(keys);
  command->callback([arguments, options, &exit_code] {
    write_output(output(*arguments, *options));
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
