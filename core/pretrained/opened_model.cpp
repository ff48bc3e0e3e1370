#include "core/pretrained/opened_model.h"

#include "core/pretrained/import.h"
#include "core/pretrained/receipt.h"
#include "core/pretrained/run_source.h"
#include "core/run/run_ids.h"
#include "core/run/run_tokenizer.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

bool is_published(const fs::path& folder) {
  return fs::exists(folder / "config.json") && !fs::exists(folder / "config.resolved.toml");
}

}  // namespace

OpenedModel::OpenedModel(const fs::path& source, const char* what, const std::vector<std::string>& overrides,
                         const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  fs::path run = source;
  if (is_published(source)) {
    imported_ = std::make_unique<TemporaryImport>();
    run = imported_->run();
    import_model({.source = source, .output = run, .left_out = {}}, plugin_keys, plugin_kinds);
  }
  const RunSource found = find_run_source(run, what);
  checkpoint_ = found.checkpoint;
  std::vector<std::string> all = {"data.source=\"synthetic\""};
  all.insert(all.end(), overrides.begin(), overrides.end());
  config_ = load_config(found.config.string(), all, plugin_keys, plugin_kinds);
  reader_ = std::make_unique<CheckpointReader>(checkpoint_);
  const fs::path folder = found.config.parent_path();
  require_same_run(checkpoint_, reader_->state(), folder, ids_in(folder).run);
  for (const char* place : {tokenizer_folder, pretrained_folder}) {
    for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
      if (tokenizer_.empty() && fs::exists(folder / place / file)) {
        tokenizer_ = folder / place;
      }
    }
  }
}

}  // namespace orthant
