// The fields of a request's body, read without trust. What is not asked for by name is refused, never ignored.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/ordered_json.h"

namespace orthant {

// null is as good as missing. Errors of all: ApiError of status 400 that names the field.
class RequestFields {
 public:
  // known: the fields that may stand there.
  RequestFields(const std::string& body, std::span<const std::string_view> known);

  const OrderedJson* at(const char* key) const;  // null: missing
  bool flag(const char* key, bool otherwise = false) const;
  std::int64_t integer(const char* key, std::int64_t otherwise, std::int64_t low, std::int64_t high) const;
  double number(const char* key, double otherwise) const;
  bool is(const char* key, const OrderedJson& value) const { return at(key) != nullptr && *at(key) == value; }
  // Throws unless the field is missing or `harmless`. why: what is expected in its place.
  void refuse_unless(bool harmless, const char* key, const char* why) const;

 private:
  OrderedJson json_;
};

// As JSON, short enough for a message.
std::string shown(const OrderedJson& value);

}  // namespace orthant
