// Keys: what a kind of the catalogue reads from the configuration, declared by the kind itself.
//
// A kind has a struct with a member for each of its keys, which holds the default. Keys names the members and says what
// may be written. The configuration then takes the keys in the table whose key names the kind: a gate's in [moe]. They
// are checked, shown, kept in checkpoints and compared on resume like the core's own, whether the kind is chosen or
// not.
//
//   struct WarmKeys {
//     double warmth = 1;
//     static const Keys<WarmKeys>& keys() {
//       static const auto all =
//           Keys<WarmKeys>().add("warmth", &WarmKeys::warmth, "Divides the logits.", at_least(0.1));
//       return all;
//     }
//   };
//   std::vector<KindKey> WarmGate::keys() const { return WarmKeys::keys().declared(); }  // of each noun but Hook
//   ... read_keys<WarmKeys>(kind_values(moe)).warmth                                         // where it computes
//
// Several kinds may read one key of a table: each declares it, with one type, default and range.
//
// Thread safety: reading is safe from several threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/table.h>

namespace orthant {

struct ModelSettings;
struct MoeSettings;
struct OptimizerSettings;
struct Settings;

// A key as the configuration takes it.
struct KindKey {
  KeySpec spec;            // REQUIRES: not `required`
  std::string table = {};  // where it stands; empty: in the table whose key names the kind
  std::string after =
      {};  // listed behind this key of the table; empty: behind the kind's key before, or the kind's name
  // What is wrong with a value that type and range allow, "0 never forgets", then a line that says what to write.
  // Empty: nothing is.
  std::function<std::string(const Value&)> wrong = {};
};

// What a kind cannot work with in a configuration.
struct Refusal {
  std::vector<std::string> keys;  // "moe.top_k": it is told at the first that somebody wrote
  std::string message;            // "[moe] top_k: ..."
  std::string advice;             // "write ..."
};

// The values of keys by name; one that is missing has its default.
using KeyValues = std::map<std::string, Value>;

// Those of a table's keys that kinds declare. A table of no struct here, such as [distil], is asked for by name.
// What is returned lives as long as the settings; the name need not.
const KeyValues& kind_values(const ModelSettings& model);
const KeyValues& kind_values(const MoeSettings& moe);
const KeyValues& kind_values(const OptimizerSettings& optimizer);
const KeyValues& kind_values(const Settings& settings, std::string_view table);
KeyValues& kind_values(Settings& settings, std::string_view table);

inline constexpr double most_of_an_integer = 1099511627776;  // 2^40

struct KeyRange {
  std::optional<double> minimum = {}, maximum = {};  // inclusive
  bool counted = false;                              // an integer has a maximum too: most_of_an_integer
};
// Integers are then far below what would overflow: two can be added, and counted on from.
inline KeyRange at_least(double minimum) {
  return {.minimum = minimum, .counted = true};
}
inline KeyRange between(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum};
}

// A member of a struct as a Value, and back. REQUIRES of assign: the alternative that as_value gives.
template <class T>
Value as_value(const T& member) {
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    return static_cast<std::int64_t>(member);
  } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
    return std::vector<double>(member.begin(), member.end());
  } else if constexpr (requires { member.written(); }) {
    return member.written();
  } else {
    return member;
  }
}
template <class T>
void assign(T& member, const Value& value) {
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    member = static_cast<std::uint64_t>(std::get<std::int64_t>(value));
  } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
    const auto& list = std::get<std::vector<double>>(value);
    member = {list.at(0), list.at(1)};
  } else if constexpr (requires { member.written(); }) {
    member = T(std::get<std::int64_t>(value));
  } else {
    member = std::get<T>(value);
  }
}

// The keys of a struct, in the order of the documentation. A default is what a fresh Own holds: it is written once.
template <class Own>
class Keys {
 public:
  struct Entry {
    KindKey key;
    std::function<Value(const Own&)> get;
    std::function<void(Own&, const Value&)> set;
  };

  // T: bool, std::int64_t, double, std::string, a vector of the last three, std::array<double, 2>.
  template <class T>
  Keys& add(const std::string& name, T Own::*member, const std::string& help, const KeyRange& range = {}) {
    Entry& entry = push(
        name, help, [member](const Own& own) { return as_value(own.*member); },
        [member](Own& own, const Value& value) { assign(own.*member, value); });
    KeySpec& spec = entry.key.spec;
    const bool capped = range.counted && std::holds_alternative<std::int64_t>(spec.default_value);
    spec.minimum = range.minimum;
    spec.maximum = capped ? most_of_an_integer : range.maximum;
    spec.length = std::is_same_v<T, std::array<double, 2>> ? 2 : 0;
    return *this;
  }

  // One of several words: names[i] stands for the enumerator of value i.
  template <class E>
  Keys& choice(const std::string& name, E Own::*member, const std::vector<std::string>& names,
               const std::string& help) {
    Entry& entry = push(
        name, help, [member, names](const Own& own) { return names.at(static_cast<std::size_t>(own.*member)); },
        [member, names](Own& own, const Value& value) {
          const auto found = std::find(names.begin(), names.end(), std::get<std::string>(value));
          own.*member = static_cast<E>(found - names.begin());
        });
    entry.key.spec.choices = names;
    return *this;
  }

  // Of the key that was added last: KindKey's, and KeySpec's.
  Keys& after(const std::string& key) {
    entries_.back().key.after = key;
    return *this;
  }
  Keys& file() {
    entries_.back().key.spec.file = true;
    return *this;
  }
  Keys& in(const std::string& table) {
    entries_.back().key.table = table;
    return *this;
  }
  template <class Wrong>  // std::string(const Own&), of which only this key's member is set
  Keys& refuse(Wrong wrong) {
    entries_.back().key.wrong = [wrong, set = entries_.back().set](const Value& value) {
      Own own;
      set(own, value);
      return wrong(own);
    };
    return *this;
  }

  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<KindKey> declared() const {
    std::vector<KindKey> keys;
    for (const Entry& entry : entries_) {
      keys.push_back(entry.key);
    }
    return keys;
  }

 private:
  Entry& push(const std::string& name, const std::string& help, std::function<Value(const Own&)> get,
              std::function<void(Own&, const Value&)> set) {
    KeySpec spec{.name = name, .default_value = get(Own()), .help = help};
    entries_.push_back({{std::move(spec)}, std::move(get), std::move(set)});
    return entries_.back();
  }

  std::vector<Entry> entries_;
};

// The values of Own::keys(). Errors: std::bad_variant_access for a value of another type, which no configuration has.
template <class Own>
Own read_keys(const KeyValues& values) {
  Own own;
  for (const auto& entry : Own::keys().entries()) {
    if (const auto found = values.find(entry.key.spec.name); found != values.end()) {
      entry.set(own, found->second);
    }
  }
  return own;
}
// Puts them among `values`, in place of what stood there.
template <class Own>
void write_keys(KeyValues& values, const Own& own) {
  for (const auto& entry : Own::keys().entries()) {
    values[entry.key.spec.name] = entry.get(own);
  }
}

}  // namespace orthant
