// Checks one written value against the declaration of its key.
#pragma once

#include <orthant/table.h>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/config/diagnostics.h"
#include "core/config/toml_reader.h"

namespace orthant {

// The value with the type of spec.default_value, or nothing after a diagnostic (type, range, choice).
// `name` is "[table] key".
std::optional<Value> check_value(const KeySpec& spec, const std::string& name, const Node& node,
                                 Diagnostics& diagnostics);

// Makes a path, or each of a list, absolute, from the directory of the file that wrote it. False for what is no file
// name.
bool make_absolute(Value& value, const std::filesystem::path& directory);

// The value as it is written, where nobody says what may be: nothing after a diagnostic for what no key can hold.
std::optional<Value> written_value(const std::string& name, const Node& node, Diagnostics& diagnostics);

// "an integer of at least 1", "one of "fp32", "bf16"", ...: what may be written.
std::string allowed_text(const KeySpec& spec);

}  // namespace orthant
