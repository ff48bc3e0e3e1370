// Table: the validated values of one configuration table, and KeySpec: how a key is declared.
//
// The core and every plugin declare their keys as KeySpecs. The configuration (core/config) refuses what is not
// declared, fills in defaults and hands out Tables. A Table is read-only after loading, and safe to share among
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/error.h>

namespace orthant {

using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>,
                           std::vector<std::string>>;

// One key of a table. The alternative that `default_value` holds is the key's type. An integer is accepted for a
// double, and a single value for a list.
struct KeySpec {
  std::string name;
  Value default_value;
  std::string help;                       // one sentence, with the unit
  std::optional<double> minimum = {};     // inclusive, numbers only
  std::optional<double> maximum = {};     // inclusive
  std::vector<std::string> choices = {};  // strings only; empty: any
  bool required = false;                  // no default: the user must write it
  bool bytes = false;                     // a string that parse_bytes takes, or ""; a plain integer is taken too
  std::size_t length = 0;                 // lists only: so many values; 0: any number
  bool file = false;                      // a path, or a list of them; relative to the file that writes it
};

// The bytes of "20 GiB", "512 MiB", "1.5 GB" (10^9), "4096": a number above 0 and B, KiB, MiB, GiB, TiB, KB, MB, GB or
// TB, in letters of any size. Nothing for other texts, and for more than 2^60.
std::optional<std::int64_t> parse_bytes(const std::string& text);

class Table {
 public:
  struct Entry {
    Value value;
    std::string origin;  // "file.toml:3:8", "--set:1:12" (first override, column 12), "default"
  };

  Table() = default;
  Table(std::string path, std::map<std::string, Entry> entries)
      : path_(std::move(path)), entries_(std::move(entries)) {}

  const std::string& path() const { return path_; }  // "plugins.data"
  const std::map<std::string, Entry>& entries() const { return entries_; }

  // REQUIRES: the key was declared with this type. Errors: Error naming the table and the key.
  bool boolean(const std::string& key) const { return get<bool>(key); }
  std::int64_t integer(const std::string& key) const { return get<std::int64_t>(key); }
  double number(const std::string& key) const { return get<double>(key); }
  const std::string& text(const std::string& key) const { return get<std::string>(key); }
  const std::string& origin(const std::string& key) const { return entry(key).origin; }

 private:
  const Entry& entry(const std::string& key) const {
    auto it = entries_.find(key);
    require(it != entries_.end(), "[{}] has no key '{}': declare it in the plugin's keys()", path_, key);
    return it->second;
  }
  template <class T>
  const T& get(const std::string& key) const {
    const T* value = std::get_if<T>(&entry(key).value);
    require(value != nullptr, "[{}] {} was declared with another type", path_, key);
    return *value;
  }

  std::string path_;
  std::map<std::string, Entry> entries_;
};

}  // namespace orthant
