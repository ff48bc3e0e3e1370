// The tokenizer of a run, in RUN/tokenizer/: `orthant eval` reads texts by it, and `orthant export` writes it.
#pragma once

#include <orthant/settings.h>

#include <filesystem>
#include <memory>
#include <string>

#include "core/tokenizer/text_rules.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

inline constexpr const char* tokenizer_folder = "tokenizer";

// The tokenizer of the run's data; null for bytes, and for a source that reads no files. Errors: those of
// load_tokenizer.
std::shared_ptr<const Tokenizer> tokenizer_to_keep(const Settings& settings);

// The rules of the texts of a new run (text_rules.h): those of `from`, the run whose weights it begins or goes on with
// (empty: none), joined with those of the chat template that its data are read by. An end of `from` that is another
// token by the run's own tokenizer, or none of the model, is none any more. Errors: those of text_rules_in,
// chat_template and load_tokenizer.
TextRules rules_to_keep(const Settings& settings, const std::filesystem::path& from);

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
