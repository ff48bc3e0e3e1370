// What lies beside a published model's weights: files that travel with an import, and what is to be said of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/pretrained/source_weights.h"

namespace orthant {

struct TravellingFile {
  std::string name, text;
};

// Those that are there. Errors: ConfigError for one that was cut short.
std::vector<TravellingFile> read_travelling_files(const std::filesystem::path& source);

// What was published with the model, is no weights and does not travel.
std::vector<std::string> files_left_behind(const std::filesystem::path& source, const SourceWeights& weights);

// Ends of texts that are no ids of the model. generation_config.json is written for a model. A config.json may have
// them from its class alone, whose vocabulary is another: that is told, and refused where a text is to be ended.
std::vector<std::string> notes_on_ends(const std::filesystem::path& source, std::int64_t vocabulary);

std::vector<std::string> notes_on_tokenizer(const std::filesystem::path& source);

}  // namespace orthant
