// Text files as token files that are made once and kept: what data.source = "text" does with a tokenizer.
//
// The tokens of a text lie in FOLDER/STEM-TEXT-HOW.tok: TEXT is a hash of the text, HOW one of the tokenizer and of
// what else the tokens depend on. A changed text or tokenizer has another name, so a file that is there is never out of
// date. A file has its name only when it is whole. Processes of one machine take turns at a lock, so one of them works
// and the others find what it made; after a kill the next one goes on. Other machines that share the folder have
// partial files of their own, and the last one to finish replaces equal bytes.
//
// Thread safety: from any thread, in any number of processes.
#pragma once

#include <orthant/settings.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/data/prepare.h"

namespace orthant {

// The token file of each of options.files, in order; those that are missing or damaged are made. options.output: the
// folder. Errors: those of prepare_tokens, and Error where the folder cannot be written or locked.
std::vector<std::string> cached_tokens(const PrepareOptions& options);

// The same where all are there; nothing is written. Errors: ConfigError for a text that is missing or empty.
std::optional<std::vector<std::string>> find_cached_tokens(const PrepareOptions& options);

// Where the token files of a run's texts are kept: run.directory/.tokens. No run can have this name.
std::filesystem::path token_cache_folder(const Settings& settings);

}  // namespace orthant
