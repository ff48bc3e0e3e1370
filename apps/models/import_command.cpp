// orthant import DIR -o RUN [--adapter DIR] [--leave-out PATTERN]... [--pass-over KEY]... [--mtp] [--vocabulary N]
// [--check PYTHON]: a published model as a run after step 0.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>

#include "apps/pretrained/import.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print(const ImportOptions& options, const ImportResult& result) {
  put("{}: {} parameters of the model type {}, from {} tensors{}\n", options.output.string(), result.parameters,
      result.model_type, result.tensors, result.packed ? ", experts packed" : "");
  if (!result.converted.empty()) {
    put("  converted  {} to f32; orthant export writes fp32 or bf16\n", fmt::join(result.converted, ", "));
  }
  if (result.check.has_value()) {
    put("  checked    logits of {} tokens by {}: {:.2g} of the largest apart ({:.0e} is allowed)\n",
        result.check->tokens, result.check->by, result.check->difference, most_logits_differ);
  }
  if (!result.left_out.empty()) {
    constexpr std::size_t most_named = 8;
    const std::span shown = std::span(result.left_out).first(std::min(most_named, result.left_out.size()));
    const std::size_t more = result.left_out.size() - shown.size();
    put("  left out   {}{}\n", fmt::join(shown, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
  }
  if (result.adapted > 0) {
    put("  adapter    added to {} matrices\n", result.adapted);
  }
  if (!options.passed_over.empty()) {
    put("  passed over  {}: keys of config.json, as asked for\n", fmt::join(options.passed_over, ", "));
  }
  put("  with it    {}\n", fmt::join(result.files, ", "));
  if (!result.left_behind.empty()) {
    put("  not taken  {}\n", fmt::join(result.left_behind, ", "));
  }
  for (const std::string& note : result.notes) {
    put("  note       {}\n", note);
  }
  put("  receipt    {}\n", (options.output / "pretrained/receipt.json").string());
  put("  model      {}\n", how_to_train(options.output));
}

}  // namespace

void add_import_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("import");
  add_examples(*command, "  orthant import OLMoE-1B-7B-0924 -o runs/olmoe");
  auto options = std::make_shared<ImportOptions>();
  command->add_option("DIR", options->source, "A folder with config.json and safetensors")
      ->required()
      ->check(not_empty);
  command->add_option("-o,--output", options->output, "The run's folder, to be made")->required()->check(not_empty);
  command
      ->add_option("--adapter", options->adapter,
                   "A folder that peft saved: what its adapter adds becomes part of the weights")
      ->check(not_empty)
      ->type_name("DIR");
  command->add_option("--leave-out", options->left_out, "Tensors that are not to be used, by name; * and ? match")
      ->allow_extra_args(false);
  command
      ->add_option("--pass-over", options->passed_over,
                   "A key of config.json that is not known here, and by which nothing computes")
      ->allow_extra_args(false);
  command->add_flag("--mtp", options->with_mtp,
                    "Take the blocks of multi-token prediction too, to train them on (model.mtp_depth)");
  command
      ->add_option("--vocabulary", options->vocabulary,
                   "Tokens that the model gets, where a chat has more: new ones begin as the mean of all others")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 28))
      ->type_name("N");
  command->add_option("--check", options->check_by, "A Python with transformers: compare logits with what it computes")
      ->check(not_empty);
  command->callback([options, &exit_code] {
    print(*options, import_model(*options, keys_of_plugin, kinds_of_plugin));
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
