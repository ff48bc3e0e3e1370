#include "apps/pretrained/import.h"

#include <fmt/format.h>

#include <utility>

#include "apps/pretrained/peer_logits.h"
#include "apps/pretrained/published_model.h"
#include "apps/pretrained/sample_logits.h"
#include "core/arch/links.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Errors: Error where the models are not the same one.
LogitsCheck check_logits(const ImportOptions& options, const Config& config, const fs::path& checkpoint) {
  const std::vector<std::int32_t> token = sample_tokens(64, config.settings.model.vocab_size);
  const Logits theirs = peer_logits(options.check_by, options.source, token);
  const LogitsDifference found = compare_logits(
      {fmt::format("the import of '{}'", options.source.string()), sample_logits(config, checkpoint, token, 1)},
      theirs);
  const LogitsCheck check{theirs.by, static_cast<std::int64_t>(token.size()), found.largest, found.difference};
  require(check.difference <= most_logits_differ,
          "the logits of '{}' differ from those of {} by {:.3g} of the largest, {:.0e} is allowed: it is not the same "
          "model here, and nothing was written",
          options.source.string(), check.by, check.difference, most_logits_differ);
  return check;
}

}  // namespace

ImportResult import_model(const ImportOptions& options, const PluginKeys& plugin_keys,
                          const PluginKinds& plugin_kinds) {
  NewRun run(options.output);
  const PublishedModel model(options, run, plugin_keys, plugin_kinds);
  Receipt receipt = model.receipt();
  receipt.files = model.weights().files();
  if (model.adapter().has_value()) {
    receipt.adapter = model.adapter()->files();
  }
  run.write_weights(model.config(), model.tensors());
  if (!options.check_by.empty()) {
    receipt.check = check_logits(options, model.config(), checkpoint_folder(run.workshop().path() / "checkpoints", 0));
  }
  model.write_travelling(run);
  run.workshop().write_text((fs::path(pretrained_folder) / "receipt.json").string(), receipt.to_json());
  Disk().sync_folder(run.workshop().path() / pretrained_folder);
  run.finish(model.config());

  ImportResult result{.model_type = model.family().model_type,
                      .tensors = static_cast<std::int64_t>(receipt.dtypes.size()),
                      .packed = receipt.experts != ExpertForm::each,
                      .converted = receipt.converted(),
                      .check = receipt.check,
                      .left_out = receipt.left_out,
                      .files = {},
                      .left_behind = files_left_behind(options.source, model.weights()),
                      .notes = model.notes(),
                      .adapted = model.adapter().has_value() ? model.adapter()->matrices() : 0};
  for (const TravellingFile& file : model.travelling()) {
    result.files.push_back(file.name);
  }
  for (std::string& note : notes_on_tokenizer(options.source)) {
    result.notes.push_back(std::move(note));
  }
  for (const TensorPlace& place : receipt.places) {
    result.parameters += place.ours.starts_with(gate_state_prefix) ? 0 : place.elements();
  }
  return result;
}

}  // namespace orthant
