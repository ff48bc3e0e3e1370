// import: a published model's folder becomes a run of ours after step 0.
//
// RUN/ has checkpoints/step_000000 (weights in fp32, no optimizer state), config.resolved.toml, model.toml (the tables
// of the model, for other configurations to extend) and pretrained/ (receipt.h).
//
// Strict: each key of config.json is understood or refused by name; each element of each tensor becomes one element of
// one of our parameters, or the tensor is named and nothing is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/pretrained/receipt.h"
#include "core/config/config.h"

namespace orthant {

struct ImportOptions {
  std::filesystem::path source;               // a folder with config.json and safetensors
  std::filesystem::path output;               // the run's folder, to be made
  std::vector<std::string> left_out;          // patterns (* and ?) of tensors that are not to be used
  std::vector<std::string> passed_over = {};  // keys of config.json by which nothing computes, as the user says
  bool with_mtp = false;                      // with the blocks of multi-token prediction, as model.mtp_depth
  std::filesystem::path adapter = {};         // a folder of peft's whose adapter is added; empty: none
  std::int64_t vocabulary = 0;                // tokens that the model gets, for those of a chat; 0: as published
  std::string check_by = {};  // a Python with transformers, which computes logits to compare with; empty: none
};

struct ImportResult {
  std::string model_type;
  std::int64_t parameters = 0, tensors = 0;
  bool packed = false;
  std::vector<std::string> converted;  // types of the source that an export does not write
  std::optional<LogitsCheck> check = {};
  std::vector<std::string> left_out = {}, files;  // tensors; files that travel with the weights
  std::vector<std::string> left_behind = {};      // files of the source that do not, but those with weights
  std::vector<std::string> notes = {};            // what its user should know
  std::size_t adapted = 0;                        // matrices to which something was added
};

// Logits of 64 tokens may differ from transformers' by so much of the largest: two orders of sums in fp32, in models of
// many layers. A wrong angle, norm or weight makes more.
constexpr double most_logits_differ = 1e-3;

// One tensor at a time is in memory, but for a check. Errors: ConfigError naming every key and every tensor that does
// not fit; Error for a damaged source, for what the disk refuses, and for a check that fails; those of peer_logits.
ImportResult import_model(const ImportOptions& options, const PluginKeys& plugin_keys,
                          const PluginKinds& plugin_kinds = {});

}  // namespace orthant
