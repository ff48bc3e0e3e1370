// JsonField: a value in a JSON file and its place, for readers that refuse what they do not know.
//
// Internal to plugins/tokenizer: include it from .cpp files only. Thread safety: values over a constant document.
#pragma once

#include <orthant/error.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace orthant {

// The document outlives its fields. Errors of all methods: ConfigError, naming file and place.
class JsonField {
 public:
  JsonField(const Json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  // A member of an object.
  JsonField at(const std::string& key) const;
  // Nothing where it is missing or null.
  std::optional<JsonField> find(const std::string& key) const;
  JsonField element(std::size_t index) const;  // REQUIRES: an array, index < size
  std::size_t size() const;                    // of an array

  std::string text() const;
  bool flag() const;
  std::int64_t integer() const;
  // Of a member; `fallback` where it is missing or null.
  std::string text(const std::string& key, std::string fallback) const;
  bool flag(const std::string& key, bool fallback) const;

  // Refuses members of other names.
  void only(std::initializer_list<std::string_view> keys) const;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    refuse_with(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse_with(const std::string& message) const;
  JsonField below(const Json& value, const std::string& step) const;

  const Json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace orthant
