// JSON from outside, read without trust.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace orthant {

using Json = nlohmann::json;

// `where` begins every message ("checkpoint manifest 'x'").
// Errors: Error for what is not JSON, for a key used twice in one object and for nesting deeper than 16.
Json parse_json(std::span<const std::byte> text, const std::string& where);

// Errors: Error, beginning with `where`, for a string that is not UTF-8.
std::string dump_json(const Json& json, const std::string& where, int indent = -1);

// A member of an object. Errors: Error naming `where` and the key when it is missing or of another type; integers
// must be whole numbers in [0, 2^63).
const Json& member(const Json& object, const char* key, const std::string& where);
std::string text_at(const Json& object, const char* key, const std::string& where);
std::int64_t integer_at(const Json& object, const char* key, const std::string& where);
std::vector<std::int64_t> integers_at(const Json& object, const char* key, const std::string& where);

}  // namespace orthant
