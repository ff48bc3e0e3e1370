// ConfigLink: a published config.json and our [model] and [moe] tables, tied key by key, in both directions.
//
// A family (family.h) states once which of its keys is which of ours. Reading by that statement turns a config.json
// into our keys; writing by it turns our configuration into a config.json. Neither way is anything left over: a key of
// theirs that the statement does not name is refused, and so is a setting of ours that theirs cannot say.
//
// Problems are collected, to be told all at once. Thread safety: none. Internal to apps/pretrained (nlohmann-json).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace orthant {

// "model.layers", "4": keys with their values as TOML, in the order in which they were stated.
using OurKeys = std::vector<std::pair<std::string, std::string>>;

struct CoreKey;

// Whether a key of ours, "moe.aux_loss", is of [model] or [moe] and says nothing about a model's forward pass where no
// token is dropped.
bool only_trains(const std::string& key);
// Whether a key says something about the forward pass of this model, without dropout and noise, where no token is
// dropped.
bool of_forward_pass(const CoreKey& key, const Settings& settings);

class ConfigLink {
 public:
  using Theirs = nlohmann::ordered_json;

  // Reads a config.json, an object.
  explicit ConfigLink(Theirs config) : theirs_(std::move(config)) {}
  // Writes one for a configuration, which outlives this.
  explicit ConfigLink(const Config& config) : config_(&config) {}
  bool reading() const { return config_ == nullptr; }

  // theirs = ours. absent: what a missing or null key of theirs means; without it the key must be there.
  void integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent = {});
  void number(const char* theirs, const char* ours, std::optional<double> absent = {});
  void flag(const char* theirs, const char* ours, std::optional<bool> absent = {});

  // A key of theirs that must have this value, or be missing or null, as nothing else is done here.
  void theirs(const char* key, const Theirs& value);
  // A key of ours that must have this value (as TOML), as a model of this family does nothing else.
  void ours(const char* key, const std::string& value);
  // Keys of theirs that say nothing about the forward pass: read whatever they hold, and not written.
  void besides(std::initializer_list<const char*> keys) { named_.insert(keys.begin(), keys.end()); }
  // The same of keys of ours: theirs need not say them.
  void ours_besides(std::initializer_list<const char*> keys) {
    ours_besides_.insert(keys.begin(), keys.end());
    if (!reading()) {
      named_.insert(keys.begin(), keys.end());
    }
  }
  const std::set<std::string>& ours_besides() const { return ours_besides_; }

  // Whether theirs is there, null or not. REQUIRES: reading.
  bool says(const char* theirs) const { return theirs_.contains(theirs); }

  // For what no pair of keys says. REQUIRES: reading. The value of theirs, null where it is missing; what ours becomes.
  Theirs take(const char* key);
  void set(const char* key, const std::string& value) { keys_.emplace_back(key, value); }
  // What ours has become so far; otherwise: where nothing was said of it. REQUIRES: reading.
  std::int64_t stated(const std::string& key, std::int64_t otherwise) const;
  // REQUIRES: writing. What ours is, with zeros that stand for other settings replaced; what theirs becomes.
  std::int64_t our_integer(const char* key);
  double our_number(const char* key) { return std::get<double>(our(key)); }
  bool our_flag(const char* key) { return std::get<bool>(our(key)); }
  std::vector<double> our_numbers(const char* key) { return std::get<std::vector<double>>(our(key)); }
  std::string our_text(const char* key) { return std::get<std::string>(our(key)); }
  void put(const char* key, const Theirs& value) { theirs_[key] = value; }
  // Why it is not possible: a line that begins with the key.
  void refuse(const std::string& why) { refused_.push_back(why); }

  // What was read. Keys that nobody has named are refused too. REQUIRES: reading. Errors: ConfigError with all that was
  // refused, naming `where`.
  // passed_over: keys of which somebody has said that nothing computes by them. One that is not there, or that the
  // family names, is refused.
  OurKeys read(const std::string& where, const std::vector<std::string>& passed_over = {});
  // What was written, and what theirs cannot say, a line each, by our keys; among it all settings of a model that no
  // statement has named. REQUIRES: writing.
  const Theirs& written() const { return theirs_; }
  std::vector<std::string> unsaid();

 private:
  template <class T, class Fits>
  void take_value(const char* theirs, const char* ours, const char* kind, const std::optional<T>& absent, Fits fits);
  const Value& our(const std::string& key);

  const Config* config_ = nullptr;  // null: reading
  Theirs theirs_;
  OurKeys keys_;
  std::set<std::string> named_;  // keys of theirs when reading, of ours when writing
  std::set<std::string> ours_besides_;
  std::vector<std::string> refused_;
};

}  // namespace orthant
