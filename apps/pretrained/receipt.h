// The receipt of an import: where each weight came from. It lies in RUN/pretrained/receipt.json, beside the config.json
// and the tokenizer of the source, and travels with every run that begins from these weights; an export goes by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/pretrained/source_weights.h"
#include "apps/pretrained/tensor_names.h"
#include "core/run/starting_weights.h"

namespace orthant {

// Files of a published model that travel as they are, where it has them: of its tokenizer, and configurations.
std::vector<std::string> travelling_files();

// Logits of the imported model beside those that transformers finds in the source.
struct LogitsCheck {
  std::string by;  // "transformers 5.1.0, torch 2.9.0"
  std::int64_t tokens = 0;
  double largest = 0;     // logit, by size
  double difference = 0;  // the largest, over `largest`
};

struct Receipt {
  std::string model_type;
  ExpertForm experts = ExpertForm::each;
  std::vector<SourceWeights::File> files;
  std::vector<TensorPlace> places;
  std::map<std::string, FileType> dtypes;     // of each tensor of theirs that was used
  std::map<std::string, std::string> scales;  // of F8_E4M3 tensors: the tensor with the scales
  std::vector<std::string> left_out;          // as asked for; and what only rounds activations of a model in 8 bits
  std::vector<std::string> repeated;          // a tied output matrix that the source stores all the same

  std::map<std::string, std::string> passed_over = {};  // keys of config.json, as asked for, and what they hold

  std::vector<SourceWeights::File> adapter = {};  // whose products were added to the weights
  std::optional<LogitsCheck> check;               // where it was asked for

  std::vector<std::string> converted() const;  // "F16", "F8_E4M3": what is stored so and was made f32
  std::string to_json() const;
};

// What an export needs of it. Errors: Error naming the file where it is damaged.
struct Origin {
  std::string model_type;
  ExpertForm experts = ExpertForm::each;
  std::map<std::string, DType> dtypes;  // in which each tensor is written: f32 where its own type is none that we write
  std::set<std::string> converted;      // these types
  std::filesystem::path folder;         // of the files that travel
  std::vector<std::string> passed_over = {};  // keys of its config.json
};
// Nothing where the run was not begun from a published model.
std::optional<Origin> origin_of(const std::filesystem::path& run);

}  // namespace orthant
