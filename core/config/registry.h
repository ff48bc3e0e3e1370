// The core's configuration keys: one declaration each, from which checking, defaults, `orthant config --resolved`,
// `--schema` and the table in docs/reference/configuration.md all follow. Plugins declare theirs as KeySpecs.
#pragma once

#include <orthant/settings.h>
#include <orthant/table.h>
#include <functional>
#include <string>
#include <vector>

namespace orthant {

struct CoreKey {
  std::string table;  // "run"
  KeySpec spec;
  std::size_t length = 0;  // of a list; 0: any
  std::string noun = {};   // its value names a kind of this noun in the catalogue
  // REQUIRES: `value` holds the alternative of spec.default_value and is one of its choices.
  std::function<void(Settings&, const Value&)> set;
};

// In the order of the documentation; the keys of one table follow each other.
std::vector<CoreKey> core_keys();

// The tables of core_keys(), each once, in that order.
std::vector<std::string> core_tables(const std::vector<CoreKey>& keys);

}  // namespace orthant
