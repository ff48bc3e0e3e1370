// A low-rank adapter as peft saves it, to be added to the model that it was trained on (`orthant import --adapter`).
//
// A matrix W [rows, columns] with an adapter becomes W + s B A, A [r, columns], B [rows, r]. s is lora_alpha / r, or
// lora_alpha / sqrt(r) with use_rslora; alpha_pattern has the alphas of modules by the ends of their names.
//
// Source: peft, docs/source/developer_guides/checkpoint.md ("PEFT checkpoint format"); Hu et al., "LoRA" (2021);
// Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA" (2023).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "apps/pretrained/source_floats.h"
#include "apps/pretrained/tensor_names.h"

namespace orthant {

// Thread safety: const calls from any thread.
class PeftAdapter {
 public:
  // Opens adapter_config.json and adapter_model.safetensors, and reads all pairs. Errors: ConfigError naming every key
  // that says what is not computed here (DoRA, biases, other methods than LoRA), and every tensor that is no part of a
  // pair of matrices; Error for a damaged file.
  explicit PeftAdapter(const std::filesystem::path& folder);

  // Errors: ConfigError naming each matrix that the model does not have, or has in another shape.
  void check(const std::vector<TensorPlace>& places) const;
  // Adds to `out`, the elements of the place as they were read. REQUIRES: check() has passed.
  void add(const TensorPlace& place, std::span<float> out) const;

  std::size_t matrices() const { return pairs_.size(); }
  std::vector<SourceWeights::File> files() const { return weights_.files(); }

 private:
  struct Pair {
    std::int64_t rank = 0, rows = 0, columns = 0;
    double scale = 0;
    std::vector<float> a, b;  // [rank, columns], [rows, rank]
  };
  void read_pairs(const ConfigLink::Theirs& config);

  std::filesystem::path folder_;
  SourceWeights weights_;
  std::map<std::string, Pair> pairs_;  // by the matrix's name in the model
};

}  // namespace orthant
