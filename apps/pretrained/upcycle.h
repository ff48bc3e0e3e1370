// upcycle: a dense model becomes a mixture of experts that computes the same, to train on from.
//
// Each expert is a copy of the block's FFN, or, with granularity g, of one of g equal slices of its hidden channels.
// Experts come in groups of g that make up the whole FFN. A group's experts have the same row in the router, so that a
// token's top_k * g experts are top_k whole groups; their weights sum to one, and are multiplied by g: the output is
// the dense one, whatever the router says. From the first step on the experts differ by what they are trained on.
// A tokenizer that lies with the model is copied into OUTPUT/pretrained.
// Sources: Komatsuzaki et al., "Sparse upcycling", 2022; He et al., "Upcycling large language models into mixture of
// experts", 2024 (slices, and groups that share a row).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/config/config.h"

namespace orthant {

struct UpcycleOptions {
  std::filesystem::path source;  // a run's folder, a checkpoint's in one, or a published model's
  std::filesystem::path output;  // the folder of the new run
  std::int64_t experts = 0;      // of each block, all slices counted
  std::int64_t granularity = 1;  // slices of an FFN; divides experts and the FFN's width
  std::int64_t top_k = 2;        // whole FFNs of a token
  double noise = 0;              // of the copies, in units of a matrix's root mean square
};

struct UpcycleResult {
  std::int64_t blocks = 0;
  std::int64_t parameters = 0, dense_parameters = 0;
  std::int64_t active_parameters = 0;        // that a token meets
  std::optional<double> largest_difference;  // of logits, over their largest, on 64 tokens; nothing for layernorm
};

// Errors: ConfigError for a source that has experts already, parts of plugins, or sizes that do not divide; those of
// import_model for a published model, and of find_run_source for a run.
UpcycleResult upcycle(const UpcycleOptions& options, const PluginKeys& plugin_keys,
                      const PluginKinds& plugin_kinds = {});

}  // namespace orthant
