// export: a run's weights as one model.safetensors and a config.json, as Hugging Face's transformers reads them.
//
// Parameter names are those of the checkpoint, which are Mixtral's (and, for a dense model, Mistral's) on disk, so
// that only config.json is written anew. docs/export.md tells which models have a twin in transformers.
#pragma once

#include <orthant/settings.h>
#include <orthant/tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

struct ExportOptions {
  std::filesystem::path run;      // a run's folder (its newest checkpoint), or a checkpoint's folder in one
  std::filesystem::path output;   // to be made
  DType dtype = DType::f32;       // of the weights: f32 or bf16
  bool replace_existing = false;  // write into `output` even where that holds files already
};

struct ExportResult {
  std::filesystem::path checkpoint;
  std::int64_t step = 0;
  std::int64_t parameters = 0;
  std::string model_type;                // "mixtral", "mistral" or "orthant"
  std::vector<std::string> notes;        // what the reader of the exported model has to know
  std::vector<std::string> passed_over;  // newer checkpoints that cannot be used, each with the reason
};

// Writes output/model.safetensors and output/config.json, complete or not at all: into a folder beside `output` that
// is then renamed. Where `output` holds files already (and may), its two files are replaced, the others left alone.
// One tensor at a time is in memory. Neither the run's data nor its other ranks are needed.
// Errors: Error for a run or checkpoint that is not there, incomplete or cannot be read now, one that does not fit its
// configuration or is of another run than its folder, an `output` that is not an empty folder, and for what the disk
// refuses.
ExportResult export_run(const ExportOptions& options, const PluginKeys& plugin_keys,
                        const PluginKinds& plugin_kinds = {});

// The settings for which transformers has no twin, a line each; empty where MixtralForCausalLM or MistralForCausalLM
// computes the same.
std::vector<std::string> without_twin(const Settings& settings);

// The text of config.json. REQUIRES: dtype is f32 or bf16.
std::string export_config(const Settings& settings, DType dtype);

}  // namespace orthant
