// JSON as what a template computes with.
#pragma once

#include <nlohmann/json.hpp>

#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

// Keys keep their order. Errors: TemplateError for a whole number beyond 64 bits, and for values too deep in each
// other.
Value value_of(const nlohmann::ordered_json& json);

}  // namespace orthant::jinja
