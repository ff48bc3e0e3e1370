// Internal to registry.cpp and model_keys.cpp: how a key of the core is declared.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/config/registry.h"

namespace orthant {

// Declares keys of one table. The default of a key is what a fresh Settings holds, so it is written once.
class Declarer {
 public:
  Declarer(std::vector<CoreKey>& keys, std::string table) : keys_(keys), table_(std::move(table)) {}

  // An integer, number, string, boolean or list. `field` gives the place of the value: field(Settings&) -> T&.
  template <class Field>
  CoreKey& key(const std::string& name, Field field, const std::string& help) {
    Settings defaults;
    Value value;
    assign(value, field(defaults));
    return add(name, std::move(value), help, [field](Settings& s, const Value& v) { read(field(s), v); });
  }

  // A number of bytes, written as text (KeySpec::bytes); "" stands for 0. field(Settings&) -> std::int64_t&.
  template <class Field>
  CoreKey& bytes(const std::string& name, Field field, const std::string& help) {
    CoreKey& added = add(name, std::string(), help, [field](Settings& s, const Value& v) {
      field(s) = parse_bytes(std::get<std::string>(v)).value_or(0);
    });
    added.spec.bytes = true;
    return added;
  }

  // The name of a kind in the catalogue. `spec.choices` stay empty: plugins add kinds.
  template <class Noun, class Field>
  CoreKey& kind(const std::string& name, Field field, const std::string& help) {
    CoreKey& added = key(name, field, help);
    added.noun = Noun::noun;
    return added;
  }

  // A choice: names[i] stands for the enumerator of value i.
  template <class Field>
  CoreKey& choice(const std::string& name, Field field, std::vector<std::string> names, const std::string& help) {
    Settings defaults;
    CoreKey& added = add(
        name, names.at(static_cast<std::size_t>(field(defaults))), help, [field, names](Settings& s, const Value& v) {
          const auto index = std::find(names.begin(), names.end(), std::get<std::string>(v)) - names.begin();
          field(s) = static_cast<std::remove_reference_t<decltype(field(s))>>(index);
        });
    added.spec.choices = std::move(names);
    return added;
  }

 private:
  template <class T>
  static void assign(Value& value, const T& from) {
    if constexpr (std::is_same_v<T, std::uint64_t>) {
      value = static_cast<std::int64_t>(from);
    } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
      value = std::vector<double>(from.begin(), from.end());
    } else {
      value = from;
    }
  }
  template <class T>
  static void read(T& to, const Value& value) {
    if constexpr (std::is_same_v<T, std::uint64_t>) {
      to = static_cast<std::uint64_t>(std::get<std::int64_t>(value));
    } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
      const auto& list = std::get<std::vector<double>>(value);
      to = {list.at(0), list.at(1)};
    } else {
      to = std::get<T>(value);
    }
  }
  CoreKey& add(const std::string& name, Value value, const std::string& help,
               std::function<void(Settings&, const Value&)> set) {
    CoreKey added;
    added.table = table_;
    added.spec.name = name;
    added.spec.default_value = std::move(value);
    added.spec.help = help;
    added.set = std::move(set);
    keys_.push_back(std::move(added));
    return keys_.back();
  }

  std::vector<CoreKey>& keys_;
  std::string table_;
};

// An integer has a maximum too, far above what anybody needs: two of them can be added, and counted on from.
inline constexpr double most_of_an_integer = 1099511627776;  // 2^40

inline void at_least(CoreKey& key, double minimum) {
  key.spec.minimum = minimum;
  if (std::holds_alternative<std::int64_t>(key.spec.default_value)) {
    key.spec.maximum = most_of_an_integer;
  }
}
inline void between(CoreKey& key, double minimum, double maximum) {
  key.spec.minimum = minimum;
  key.spec.maximum = maximum;
}

}  // namespace orthant
