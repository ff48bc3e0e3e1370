// The text rules of a run (text_rules.h), in RUN/text_rules.json: how its texts begin and end. They travel with its
// weights. A run without the file has those of the published model that it came from, as transformers reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/tokenizer/text_rules.h"

namespace orthant {

// Of a run's folder. Errors: Error naming the file where it is damaged; ConfigError as of published_text_rules.
TextRules text_rules_in(const std::filesystem::path& run);

// Of the files of a published model: the ids of eos_token_id in generation_config.json, else in config.json; and its
// stop_strings. Errors: ConfigError, naming file and key, for what is no id or no text.
TextRules published_text_rules(const std::filesystem::path& folder);

// Which file of `folder` names the ends: "generation_config.json", "config.json" or, where neither does, "".
std::string file_with_ends(const std::filesystem::path& folder);

// Errors: ConfigError where an end is no id of a model of `vocabulary` ids. where: the folder or file that names it.
void require_ends_within(const TextRules& rules, std::int64_t vocabulary, const std::string& where);

// Writes them into the run's folder, or takes away what stands there where they say nothing. Errors: Error for a disk
// that fails.
void keep_text_rules(const TextRules& rules, const std::filesystem::path& run);

// The text of RUN/text_rules.json; empty where the rules say nothing.
inline constexpr const char* text_rules_name = "text_rules.json";
std::string to_json(const TextRules& rules);

}  // namespace orthant
