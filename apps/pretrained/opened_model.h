// OpenedModel: the weights of a run, of a checkpoint, or of a published model's folder, to be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/config/config.h"
#include "core/run/scratch_folder.h"
#include "core/tokenizer/text_rules.h"

namespace orthant {

class OpenedModel {
 public:
  // what: the verb of the command, for messages. A published model's weights are read where they lie, and its settings
  // from a folder for temporary files, which goes with this. overrides: of the run's configuration. averages: the
  // averages of the weights in their place (weights_reader). Nothing is read from the run's data. Errors: those of
  // find_run_source, load_config, PublishedModel and weights_reader; ConfigError for averages of a published model.
  OpenedModel(const std::filesystem::path& source, const char* what, const std::vector<std::string>& overrides,
              const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds, bool averages = false);

  const Config& config() const { return config_; }
  // The folder of its weights: a checkpoint's, or the published model's.
  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  const CheckpointReader& reader() const { return *reader_; }
  // A folder with the tokenizer of the model; empty where it has none, as a run on bytes.
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  // How its texts begin and end.
  const TextRules& text_rules() const { return text_rules_; }
  // Of a published model, or what was imported of one and not trained since: the most positions that its config.json
  // speaks of. 0: it does not, or this is another model.
  std::int64_t published_positions() const { return reader_->step() == 0 ? positions_ : 0; }
  // The most positions that it is known to have been trained with: those that were published, or those of its own
  // run's sequences where these are more.
  std::int64_t known_positions() const;

 private:
  std::unique_ptr<ScratchFolder> settings_;  // of a published model
  std::filesystem::path checkpoint_, tokenizer_;
  std::int64_t positions_ = 0;  // that were published; 0: none were
  TextRules text_rules_;
  Config config_;
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace orthant
