// Files of a run or a study, read without trust: what cannot be understood is refused by file and place.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/json.h"

namespace orthant::report {

// Errors: ConfigError naming the file where it is missing, cannot be read or is no JSON.
Json read_json_file(const std::filesystem::path& file);

// A text as JSON. Errors: ConfigError beginning with `where`.
Json json_of(const std::string& text, const std::string& where);

// A number; nothing where the key is absent or null (what is not finite is written as null). Errors: ConfigError
// beginning with `where` for another type.
std::optional<double> number_at(const Json& object, const char* key, const std::string& where);

// A text, "" where the key is absent or null. Errors: as above.
std::string text_or_empty(const Json& object, const char* key, const std::string& where);

// An object or a list, null where the key is absent or null. Errors: as above.
const Json& object_at(const Json& object, const char* key, const std::string& where);
const Json& list_at(const Json& object, const char* key, const std::string& where);

// An entry of a list that must be a number, or null. Errors: as above.
std::optional<double> number_of(const Json& value, const std::string& where);

}  // namespace orthant::report
