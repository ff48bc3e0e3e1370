// embed: a vector for each text, of what an encoder's last block puts out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

enum class EmbeddingOf { mean, cls };  // all tokens of a text, those around it counted; or its first one

struct EmbedOptions {
  std::filesystem::path model;  // a run's folder or a checkpoint's
  std::vector<std::string> texts;
  EmbeddingOf of = EmbeddingOf::mean;
  std::string tokenizer;  // as for evaluate
  int threads = 1;        // of the CPU
  std::vector<std::string> overrides;
};

struct Embeddings {
  std::int64_t width = 0;
  std::vector<float> values;  // [texts, width]
  std::int64_t cut = 0;       // texts that had more tokens than a sequence has positions
};

// The lines of a file; of JSON lines (.jsonl, .json) the value of `key`. Errors: Error naming file and line;
// ConfigError for a file without a text.
std::vector<std::string> read_texts(const std::string& file, const std::string& key);

// A text stands in a sequence by itself, between the ids of [data] frame, as in training. Errors: SettingError for a
// model whose chain has no link "transform", behind whose states a head begins (plugins/encoder); those of OpenedModel.
Embeddings embed(const EmbedOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds = {});

}  // namespace orthant
