#include "plugins/tokenizer/jinja/json_value.h"

#include <limits>

#include "plugins/tokenizer/jinja/template_error.h"

namespace orthant::jinja {

Value value_of(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse("a whole number beyond 64 bits is not done here");
      }
      return Value(json.get<std::int64_t>());
    case Type::number_integer: return Value(json.get<std::int64_t>());
    case Type::number_float: return Value(json.get<double>());
    case Type::string: return Value(json.get<std::string>());
    case Type::array: {
      List list;
      for (const auto& item : json) {
        list.items.push_back(value_of(item));
      }
      return Value(std::move(list));
    }
    case Type::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.set(Value(key), value_of(item));
      }
      return Value(std::move(dict));
    }
    case Type::null:
    case Type::binary:
    case Type::discarded: break;
  }
  return Value();
}

}  // namespace orthant::jinja
