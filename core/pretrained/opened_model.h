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

namespace orthant {

class OpenedModel {
 public:
  // what: the verb of the command, for messages. A published model is imported into a folder for temporary files, which
  // goes with this. overrides: of the run's configuration. averages: the averages of the weights in their place
  // (weights_reader). Nothing is read from the run's data.
  // Errors: those of find_run_source, load_config, import_model and weights_reader; ConfigError for averages of a
  // published model.
  OpenedModel(const std::filesystem::path& source, const char* what, const std::vector<std::string>& overrides,
              const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds, bool averages = false);

  const Config& config() const { return config_; }
  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  const CheckpointReader& reader() const { return *reader_; }
  // A folder with the tokenizer of the model; empty where it has none, as a run on bytes.
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  // Of a published model, or what was imported of one and not trained since: the most positions that its config.json
  // speaks of. 0: it does not, or this is another model.
  std::int64_t published_positions() const { return published_positions_; }

 private:
  std::unique_ptr<ScratchFolder> imported_;
  std::filesystem::path checkpoint_, tokenizer_;
  std::int64_t published_positions_ = 0;
  Config config_;
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace orthant
