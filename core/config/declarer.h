// Internal to registry.cpp and model_keys.cpp: how a key of the core is declared.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/config/registry.h"

namespace orthant {

// Declares keys of one table, whose values are members of Part, itself a member of Settings.
template <class Part>
class Declarer {
 public:
  Declarer(std::vector<CoreKey>& keys, std::string table, Part Settings::*part)
      : keys_(keys), table_(std::move(table)), part_(part) {}

  // An integer, number, string, boolean or list.
  template <class T>
  CoreKey& key(const std::string& name, T Part::*member, const std::string& help, const KeyRange& range = {}) {
    return push(Keys<Part>().add(name, member, help, range));
  }

  // One of several words: names[i] stands for the enumerator of value i.
  template <class E>
  CoreKey& choice(const std::string& name, E Part::*member, const std::vector<std::string>& names,
                  const std::string& help) {
    return push(Keys<Part>().choice(name, member, names, help));
  }

  // A number of bytes, written as text (KeySpec::bytes); "" stands for 0.
  CoreKey& bytes(const std::string& name, std::int64_t Part::*member, const std::string& help) {
    CoreKey added{.table = table_, .spec = {.name = name, .default_value = std::string(), .help = help}, .set = {}};
    added.spec.bytes = true;
    added.set = [part = part_, member](Settings& s, const Value& value) {
      s.*part.*member = parse_bytes(std::get<std::string>(value)).value_or(0);
    };
    keys_.push_back(std::move(added));
    return keys_.back();
  }

  // The name of a kind in the catalogue. `spec.choices` stay empty: plugins add kinds.
  template <class Noun>
  CoreKey& kind(const std::string& name, std::string Part::*member, const std::string& help) {
    CoreKey& added = key(name, member, help);
    added.noun = Noun::noun;
    return added;
  }

 private:
  CoreKey& push(const Keys<Part>& one) {
    const auto& entry = one.entries().front();
    const auto set = [part = part_, set = entry.set](Settings& s, const Value& value) { set(s.*part, value); };
    keys_.push_back({.table = table_, .spec = entry.key.spec, .set = set});
    return keys_.back();
  }

  std::vector<CoreKey>& keys_;
  std::string table_;
  Part Settings::*part_;
};

}  // namespace orthant
