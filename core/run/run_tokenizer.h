// The tokenizer of a run, in RUN/tokenizer/: `orthant eval` reads texts by it, and `orthant export` writes it.
#pragma once

#include <orthant/settings.h>

#include <filesystem>
#include <memory>
#include <string>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

inline constexpr const char* tokenizer_folder = "tokenizer";

// The tokenizer of the run's data; null for bytes, and for a source that reads no files. Errors: those of
// load_tokenizer.
std::shared_ptr<const Tokenizer> tokenizer_to_keep(const Settings& settings);

// Copies its files into the run's folder. Errors: Error for a disk that fails.
void keep_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& run);

// Refuses data of another tokenizer than the one that `run` keeps, by its hash. A run that keeps none, and data that do
// not say, pass. Errors: ConfigError.
void require_same_tokenizer(const Settings& settings, const std::filesystem::path& run);

// Refuses a teacher, of `run`, with another tokenizer than the data, by its hash, where both say theirs.
// Errors: ConfigError.
void require_tokenizer_of_teacher(const Settings& settings, const std::filesystem::path& run);

// A note where the data are of another tokenizer than the weights of `run`, which a new run begins with: its own, or
// that of the published model it came from. Empty: of the same, or not known.
std::string other_tokenizer(const Settings& settings, const std::filesystem::path& run);

}  // namespace orthant
