#include "apps/report/read_json.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <cmath>

#include "core/base/text_file.h"

namespace orthant::report {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message);
}

const Json& typed(const Json& object, const char* key, const std::string& where, bool list) {
  static const Json nothing;
  if (!object.is_object()) {
    refuse(where + ": expected a JSON object, found " + object.type_name());
  }
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return nothing;
  }
  if (list ? !it->is_array() : !it->is_object()) {
    refuse(fmt::format("{}: '{}' must be {}, not {}", where, key, list ? "a list" : "an object", it->type_name()));
  }
  return *it;
}

}  // namespace

Json json_of(const std::string& text, const std::string& where) {
  try {
    return parse_json(std::as_bytes(std::span(text.data(), text.size())), where);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

Json read_json_file(const std::filesystem::path& file) {
  std::optional<std::string> text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (!text) {
    refuse(fmt::format("'{}' is missing", file.string()));
  }
  return json_of(*text, file.string());
}

std::optional<double> number_of(const Json& value, const std::string& where) {
  if (value.is_null()) {
    return std::nullopt;
  }
  if (!value.is_number()) {
    refuse(fmt::format("{}: expected a number, found {}", where, value.type_name()));
  }
  const double number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<double> number_at(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) {
    refuse(where + ": expected a JSON object, found " + object.type_name());
  }
  const auto it = object.find(key);
  return it == object.end() ? std::nullopt : number_of(*it, where + ": '" + key + "'");
}

std::string text_or_empty(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) {
    refuse(where + ": expected a JSON object, found " + object.type_name());
  }
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return "";
  }
  if (!it->is_string()) {
    refuse(fmt::format("{}: '{}' must be a text, not {}", where, key, it->type_name()));
  }
  return it->get<std::string>();
}

const Json& object_at(const Json& object, const char* key, const std::string& where) {
  return typed(object, key, where, false);
}

const Json& list_at(const Json& object, const char* key, const std::string& where) {
  return typed(object, key, where, true);
}

}  // namespace orthant::report
