// Values of settings as text.
#pragma once

#include <string>

#include <orthant/table.h>

namespace orthant {

// "integer", "number", "string", "boolean", "list of strings", ...
std::string type_name(const Value& value);

// The value as TOML.
std::string toml_text(const Value& value);

}  // namespace orthant
