// PublishedModel: a published model's folder, understood: its settings as ours, and its tensors as ours to be read.
// They are converted as they are read; nothing is written but small files of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/pretrained/family.h"
#include "apps/pretrained/import.h"
#include "apps/pretrained/import_files.h"
#include "apps/pretrained/new_run.h"
#include "apps/pretrained/peft_adapter.h"
#include "apps/pretrained/source_floats.h"
#include "core/checkpoint/checkpoint.h"

namespace orthant {

// Thread safety: const calls from any thread.
class PublishedModel final : public TensorSource {
 public:
  // Writes model.toml of `run`. Errors: ConfigError naming every key and every tensor that does not fit; Error for a
  // damaged source.
  PublishedModel(const ImportOptions& options, NewRun& run, const PluginKeys& plugin_keys,
                 const PluginKinds& plugin_kinds);
  PublishedModel(const PublishedModel&) = delete;
  PublishedModel& operator=(const PublishedModel&) = delete;

  const Config& config() const { return config_; }
  const Family& family() const { return *family_; }
  const SourceWeights& weights() const { return *weights_; }
  const std::optional<PeftAdapter>& adapter() const { return adapter_; }
  const Receipt& receipt() const { return receipt_; }  // without sums of files
  const std::vector<TravellingFile>& travelling() const { return travelling_; }
  const std::vector<std::string>& notes() const { return notes_; }  // what its user should know
  // Valid as long as this.
  const std::vector<NewTensor>& tensors() const { return tensors_; }
  // The files that travel with the weights, into pretrained/ of the run.
  void write_travelling(const NewRun& run) const;

  // As a checkpoint, whose manifest has `state`.
  static CheckpointReader reader(const std::shared_ptr<const PublishedModel>& model,
                                 const std::filesystem::path& source, std::map<std::string, std::string> state);
  void read(const std::string& name, const std::vector<std::int64_t>& offset, const std::vector<std::int64_t>& size,
            void* out) const override;
  void release_memory() const override { weights_->release_memory(); }

 private:
  FamilyPtr family_;
  Config config_;
  std::vector<TravellingFile> travelling_;
  std::vector<std::string> notes_;
  std::optional<SourceWeights> weights_;
  std::optional<SourceFloats> floats_;
  std::optional<PeftAdapter> adapter_;
  Receipt receipt_;
  std::vector<NewTensor> tensors_;             // they refer to what is above
  std::map<std::string, std::size_t> places_;  // of tensors_, by name
};

}  // namespace orthant
