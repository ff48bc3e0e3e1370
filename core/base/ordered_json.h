// JSON from outside whose objects keep the order of their keys, read without trust.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace orthant {

using OrderedJson = nlohmann::ordered_json;

// As parse_json (json.h), nested at most `deepest` deep. A key is looked for among all of its object: these may have
// 1000. Errors: Error, beginning with `where`.
OrderedJson parse_ordered_json(std::string_view text, const std::string& where, int deepest = 32);

}  // namespace orthant
