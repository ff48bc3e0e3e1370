#include "apps/serve/request_fields.h"

#include <orthant/error.h>

#include <algorithm>
#include <limits>

#include "apps/serve/api_error.h"

namespace orthant {

RequestFields::RequestFields(const std::string& body, std::span<const std::string_view> known) {
  try {
    json_ = parse_ordered_json(body, "the request's body");
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  if (!json_.is_object()) {
    throw ApiError(400, fmt::format("the request's body is a JSON {}: expected an object", json_.type_name()));
  }
  for (const auto& item : json_.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end() && !item.value().is_null()) {
      refuse_field(item.key(), "unknown field '{}': this server would ignore it, so it is refused",
                   clipped(item.key()));
    }
  }
}

const OrderedJson* RequestFields::at(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool RequestFields::flag(const char* key, bool otherwise) const {
  const OrderedJson* value = at(key);
  if (value != nullptr && !value->is_boolean()) {
    refuse_field(key, "'{}' is {}: expected true or false", key, shown(*value));
  }
  return value != nullptr ? value->get<bool>() : otherwise;
}

std::int64_t RequestFields::integer(const char* key, std::int64_t otherwise, std::int64_t low,
                                    std::int64_t high) const {
  const OrderedJson* value = at(key);
  if (value == nullptr) {
    return otherwise;
  }
  const bool whole = value->is_number_integer() &&
                     (!value->is_number_unsigned() ||
                      value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!whole || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high) {
    refuse_field(key, "'{}' is {}: expected a whole number from {} to {}", key, shown(*value), low, high);
  }
  return value->get<std::int64_t>();
}

double RequestFields::number(const char* key, double otherwise) const {
  const OrderedJson* value = at(key);
  if (value == nullptr) {
    return otherwise;
  }
  if (!value->is_number()) {
    refuse_field(key, "'{}' is {}: expected a number", key, shown(*value));
  }
  return value->get<double>();
}

void RequestFields::refuse_unless(bool harmless, const char* key, const char* why) const {
  if (at(key) != nullptr && !harmless) {
    refuse_field(key, "'{}' is not done by this server: {}", key, why);
  }
}

std::string shown(const OrderedJson& value) {
  return clipped(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace orthant
