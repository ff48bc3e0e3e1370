// The configuration's keys: one declaration each, from which checking, defaults, `orthant config --resolved`,
// `--schema` and the table in docs/reference/configuration.md all follow. The core declares here what every kind needs;
// kinds of the catalogue declare their own (orthant/keys.h). Plugins declare those of their tables as KeySpecs.
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
  std::string noun = {};  // its value names a kind of this noun in the catalogue
  bool of_kind = false;   // a kind declares it
  // REQUIRES: `value` holds the alternative of spec.default_value and is one of its choices.
  std::function<void(Settings&, const Value&)> set;
  std::function<std::string(const Value&)> wrong = {};  // KindKey's
};

// In the order of the documentation; the keys of one table follow each other. Calls `refuse` for what a kind declares
// and cannot have, with the reason and, on a further line, what its author should do.
using RefuseKey = std::function<void(const Catalogue::Entry&, const std::string&)>;
std::vector<CoreKey> declared_keys(const Catalogue& catalogue, const RefuseKey& refuse = {});
// Those of the kinds that the core brings.
std::vector<CoreKey> core_keys();

// The tables of `keys`, each once, in their order.
std::vector<std::string> core_tables(const std::vector<CoreKey>& keys);

}  // namespace orthant
