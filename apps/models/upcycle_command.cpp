// orthant upcycle RUN|DIR --experts E -o RUN: a dense model as a mixture with the same outputs.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "apps/pretrained/upcycle.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print(const UpcycleOptions& o, const UpcycleResult& result) {
  put("{}: {} blocks with {} experts, {} of them for a token\n", o.output.string(), result.blocks, o.experts,
      o.top_k * o.granularity);
  put("  parameters  {} (dense {}), {} of them active\n", result.parameters, result.dense_parameters,
      result.active_parameters);
  if (result.largest_difference.has_value()) {
    put("  outputs     logits differ from the dense model's by {:.2g} of the largest{}\n", *result.largest_difference,
        o.noise > 0 ? ", by the noise" : "");
  } else {
    put("  outputs     not compared: model.norm is layernorm\n");
  }
  put("  model       {}\n", how_to_train(o.output));
}

}  // namespace

void add_upcycle_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("upcycle");
  add_examples(*command, "  orthant upcycle runs/dense --experts 8 -o runs/mixture");
  auto o = std::make_shared<UpcycleOptions>();
  command->add_option("RUN", o->source, "A run's or a checkpoint's folder, or a published model's")
      ->required()
      ->check(not_empty);
  command->add_option("-o,--output", o->output, "The new run's folder, to be made")->required()->check(not_empty);
  command->add_option("--experts", o->experts, "Experts of each block")->required();
  command->add_option("--granularity", o->granularity, "Slices of an FFN, each an expert")->capture_default_str();
  command->add_option("--top-k", o->top_k, "Whole FFNs of a token")->capture_default_str();
  command->add_option("--noise", o->noise, "Added to the copies, over each matrix's root mean square")
      ->capture_default_str();
  command->callback([o, &exit_code] {
    print(*o, upcycle(*o, keys_of_plugin, kinds_of_plugin));
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
