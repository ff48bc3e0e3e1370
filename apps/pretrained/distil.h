// distil: a dense student of a mixture, to be trained on from while it learns from the mixture's logits.
//
// Embedding, norms, attention and head are the teacher's, of as many of its blocks as the student has. An FFN has the
// channels of the shared experts, then those of the routed experts one after another, as many as the student has
// channels: by default as many as a token meets. What they put out is scaled as a router scales it on average. The
// student's model.toml has a [distil] table that names the teacher's checkpoint.
// A tokenizer that lies with the teacher is copied into OUTPUT/pretrained.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/config/config.h"

namespace orthant {

struct DistilOptions {
  std::filesystem::path teacher;  // a run's folder, or a checkpoint's in one
  std::filesystem::path output;   // the folder of the new run
  std::int64_t d_ffn = 0;         // channels of the student's FFNs; 0: of the experts that a token meets
  std::int64_t layers = 0;        // blocks of the student; 0: as many as the teacher has
  bool new_ffn = false;           // the FFNs are drawn anew
};

struct DistilResult {
  std::int64_t layers = 0, d_ffn = 0;
  std::int64_t parameters = 0, teacher_parameters = 0;
  std::filesystem::path checkpoint;  // of the teacher
};

// Errors: ConfigError for a published model, which must stay where it was imported; for learned positions, FFNs of
// plugins, and sizes that make no sense; those of find_run_source.
DistilResult distil(const DistilOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds = {});

}  // namespace orthant
