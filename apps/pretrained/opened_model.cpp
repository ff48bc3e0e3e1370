#include "apps/pretrained/opened_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/pretrained/import.h"
#include "apps/pretrained/published_model.h"
#include "apps/pretrained/receipt.h"
#include "apps/pretrained/run_source.h"
#include "core/arch/trained.h"
#include "core/base/output.h"
#include "core/base/text_file.h"
#include "core/checkpoint/model_folder.h"
#include "core/config/value_text.h"
#include "core/run/run_text_rules.h"
#include "core/run/run_tokenizer.h"
#include "core/run/saving.h"
#include "core/run/starting_weights.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// A model may be asked how it does with other settings than it was trained with, but not without a word.
void tell_what_changed(const Config& here, const Config& trained) {
  for (const char* title : {"model", "moe", "lora"}) {
    const auto& before = trained.table(title).entries();
    for (const auto& [key, entry] : here.table(title).entries()) {
      const auto there = before.find(key);
      if (there != before.end() && there->second.value != entry.value) {
        say("orthant: note: {}.{} is {} here, {} where the model was trained", title, key, toml_text(entry.value),
            toml_text(there->second.value));
      }
    }
  }
}

std::int64_t positions_in(const fs::path& config) {
  const nlohmann::json json = nlohmann::json::parse(read_text_file(config).value_or(""), nullptr, false);
  const char* const key = "max_position_embeddings";
  return json.is_object() && json.contains(key) && json[key].is_number_integer()
             ? std::max<std::int64_t>(json[key].get<std::int64_t>(), 0)
             : 0;
}

// Opens a published model, whose run in `folder` has no checkpoint.
CheckpointReader open_published(const fs::path& source, const fs::path& folder, const PluginKeys& plugin_keys,
                                const PluginKinds& plugin_kinds) {
  NewRun run(folder);
  const auto model = std::make_shared<const PublishedModel>(
      ImportOptions{.source = source, .output = folder, .left_out = {}}, run, plugin_keys, plugin_kinds);
  model->write_travelling(run);
  CheckpointReader reader = PublishedModel::reader(model, source, run.state(model->config()));
  run.finish(model->config());
  return reader;
}

}  // namespace

OpenedModel::OpenedModel(const fs::path& source, const char* what, const std::vector<std::string>& overrides,
                         const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds, bool averages) {
  fs::path resolved;
  if (is_published(source)) {
    if (averages) {
      throw ConfigError(
          fmt::format("--ema: '{}' is a published model's folder, which has one set of weights: leave "
                      "--ema out, or give a run's folder",
                      source.string()));
    }
    settings_ = std::make_unique<ScratchFolder>();
    const fs::path run = settings_->path() / "run";
    checkpoint_ = source;
    reader_ = std::make_unique<CheckpointReader>(open_published(source, run, plugin_keys, plugin_kinds));
    resolved = run / "config.resolved.toml";
  } else {
    const RunSource found = find_run_source(source, what);
    checkpoint_ = found.checkpoint;
    for (const std::string& reason : found.passed_over) {
      say("orthant: warning: checkpoint passed over: {}", reason);
    }
    reader_ = std::make_unique<CheckpointReader>(weights_reader(checkpoint_, averages));
    say("orthant: note: reads {}{}", averages ? "the averages of the weights in " : "", checkpoint_.string());
    resolved = found.config;
  }
  std::vector<std::string> all = {"data.source=\"none\""};
  all.insert(all.end(), overrides.begin(), overrides.end());
  config_ = load_config(resolved.string(), all, plugin_keys, plugin_kinds);
  if (!overrides.empty()) {
    if (config_.settings.model.positions != Positions::learned) {  // their number goes with the window asked for
      check_starting_weights(*reader_, checkpoint_, config_.settings);
    }
    tell_what_changed(config_, load_config(resolved.string(), {all.front()}, plugin_keys, plugin_kinds));
  }
  leave_out_mtp(config_.settings);
  const fs::path folder = resolved.parent_path();
  require_same_run(checkpoint_, reader_->state(), folder, ids_in(folder).run);
  positions_ = positions_in(folder / pretrained_folder / "config.json");
  text_rules_ = text_rules_in(folder);
  for (const char* place : {tokenizer_folder, pretrained_folder}) {
    for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
      if (tokenizer_.empty() && fs::exists(folder / place / file)) {
        tokenizer_ = settings_ ? source : folder / place;  // a copy in a scratch folder is nobody's name for it
      }
    }
  }
}

std::int64_t OpenedModel::known_positions() const {
  const std::int64_t trained = config_.settings.data.sequence_length;
  return published_positions() > 0 ? positions_ : std::max(positions_, trained);
}

}  // namespace orthant
