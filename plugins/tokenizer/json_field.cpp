#include "plugins/tokenizer/json_field.h"

#include <algorithm>

namespace orthant {

void JsonField::refuse_with(const std::string& message) const {
  throw ConfigError(fmt::format("tokenizer '{}': {}{}{}", file_, path_, path_.empty() ? "" : ": ", message));
}

JsonField JsonField::below(const Json& value, const std::string& step) const {
  return {value, file_, path_ + step};
}

JsonField JsonField::at(const std::string& key) const {
  if (!value_->is_object()) {
    refuse("expected an object, found {}", value_->type_name());
  }
  const auto it = value_->find(key);
  if (it == value_->end()) {
    refuse("'{}' is missing", key);
  }
  return below(*it, path_.empty() ? key : "." + key);
}

std::optional<JsonField> JsonField::find(const std::string& key) const {
  if (!value_->is_object()) {
    refuse("expected an object, found {}", value_->type_name());
  }
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) {
    return std::nullopt;
  }
  return at(key);
}

JsonField JsonField::element(std::size_t index) const {
  return below((*value_)[index], fmt::format("[{}]", index));
}

std::size_t JsonField::size() const {
  if (!value_->is_array()) {
    refuse("expected a list, found {}", value_->type_name());
  }
  return value_->size();
}

std::string JsonField::text() const {
  if (!value_->is_string()) {
    refuse("expected a string, found {}", value_->type_name());
  }
  return value_->get<std::string>();
}

bool JsonField::flag() const {
  if (!value_->is_boolean()) {
    refuse("expected true or false, found {}", value_->type_name());
  }
  return value_->get<bool>();
}

std::int64_t JsonField::integer() const {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() >= most) {
    refuse("expected a whole number from 0 to 2^31 - 1, found {}", value_->type_name());
  }
  return value_->get<std::int64_t>();
}

std::string JsonField::text(const std::string& key, std::string fallback) const {
  const std::optional<JsonField> found = find(key);
  return found ? found->text() : std::move(fallback);
}

bool JsonField::flag(const std::string& key, bool fallback) const {
  const std::optional<JsonField> found = find(key);
  return found ? found->flag() : fallback;
}

void JsonField::only(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) {
    refuse("expected an object, found {}", value_->type_name());
  }
  for (const auto& item : value_->items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
      refuse("'{}' is not known here", item.key());
    }
  }
}

}  // namespace orthant
