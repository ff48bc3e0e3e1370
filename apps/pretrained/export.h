// export: a run's weights as one model.safetensors and a config.json, as Hugging Face's transformers reads them.
//
// A run that began from a published model is written as that one was: its family, its names and types, its config.json
// where the model is still what that says, its tokenizer. docs/guides/export.md tells which other models have a twin in
// transformers.
#pragma once

#include <orthant/tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

struct ExportOptions {
  std::filesystem::path run;        // a run's folder (its newest checkpoint), or a checkpoint's folder in one
  std::filesystem::path output;     // to be made
  std::optional<DType> dtype = {};  // of the weights: f32 or bf16; nothing: as the run's origin has them, else f32
  bool averages = false;            // of the weights, in their place (optimizer.ema_decay)
  bool adapter = false;  // the adapters of [lora] alone, as peft reads them; else they are added to the weights
  bool replace_existing = false;  // write into `output` even where that holds files already
};

struct ExportResult {
  std::filesystem::path checkpoint;
  std::int64_t step = 0;
  std::int64_t parameters = 0;
  std::string dtypes;                    // "fp32", "bf16" or both
  std::string model_type;                // of a family (family.h), or "orthant"
  std::vector<std::string> notes;        // what the reader of the exported model has to know
  std::vector<std::string> passed_over;  // newer checkpoints that cannot be used, each with the reason
};

// Writes output/model.safetensors, output/config.json and what travels with the weights (adapter:
// adapter_model.safetensors and adapter_config.json), complete or not at all: into a folder beside `output` that is
// then renamed. Where `output` holds files already (and may), these are replaced, the others left alone. One tensor at
// a time is in memory. Neither the run's data nor its other ranks are needed. Errors: ConfigError for a run or
// checkpoint that is not there or incomplete, and an `output` that is not an empty folder; Error for one that cannot be
// read now, does not fit its configuration or is of another run than its folder, and for what the disk refuses.
ExportResult export_run(const ExportOptions& options, const PluginKeys& plugin_keys,
                        const PluginKinds& plugin_kinds = {});

// The settings for which transformers has no twin, a line each; empty where a class of it computes the same.
std::vector<std::string> without_twin(const Config& config);

}  // namespace orthant
