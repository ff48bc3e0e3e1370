// The tokenizer that [data] names, for sources of texts.
#pragma once

#include <orthant/settings.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

// Errors: SettingError of data.tokenizer, as load_tokenizer.
std::shared_ptr<const Tokenizer> tokenizer_of(const DataSettings& data);

// Refused before a text is read by it: one with more tokens than the model. Errors: SettingError.
std::shared_ptr<const Tokenizer> fitting_tokenizer(const Settings& settings);

// name: of what has so many tokens, for messages. Errors: SettingError.
void require_vocabulary(const Settings& settings, const std::string& name, std::int64_t vocabulary);

// Errors: ConfigError where data.path names no file.
void require_files(const DataSettings& data);

}  // namespace orthant
