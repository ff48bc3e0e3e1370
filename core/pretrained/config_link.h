// ConfigLink: a published config.json and our [model] and [moe] tables, tied key by key, in both directions.
//
// A family (family.h) states once which of its keys is which of ours. Reading by that statement turns a config.json
// into our keys; writing by it turns our configuration into a config.json. Neither way is anything left over: a key of
// theirs that the statement does not name is refused, and so is a setting of ours that theirs cannot say.
//
// Problems are collected, to be told all at once. Thread safety: none. Internal to core/pretrained (nlohmann-json).
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

class ConfigLink {
 public:
  using Theirs = nlohmann::ordered_json;

  virtual ~ConfigLink() = default;
  virtual bool reading() const = 0;

  // theirs = ours. absent: what a missing or null key of theirs means; without it the key must be there.
  virtual void integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent = {}) = 0;
  virtual void number(const char* theirs, const char* ours, std::optional<double> absent = {}) = 0;
  virtual void flag(const char* theirs, const char* ours, std::optional<bool> absent = {}) = 0;

  // A key of theirs that must have this value, or be missing or null, as nothing else is done here.
  virtual void theirs(const char* key, const Theirs& value) = 0;
  // A key of ours that must have this value (as TOML), as a model of this family does nothing else.
  virtual void ours(const char* key, const std::string& value) = 0;
  // Keys of theirs that say nothing about the forward pass: read whatever they hold, and not written.
  virtual void besides(std::initializer_list<const char*> keys) = 0;

  // For what no pair of keys says. Reading: the value of theirs, null where it is missing; what ours becomes.
  virtual Theirs take(const char* key) = 0;
  virtual void set(const char* key, const std::string& value) = 0;
  // Writing: what ours is, with zeros that stand for other settings replaced; what theirs becomes.
  virtual std::int64_t our_integer(const char* key) const = 0;
  virtual double our_number(const char* key) const = 0;
  virtual bool our_flag(const char* key) const = 0;
  virtual std::string our_text(const char* key) const = 0;
  virtual void put(const char* key, const Theirs& value) = 0;
  // Why it is not possible: a line that begins with the key.
  virtual void refuse(const std::string& why) = 0;
};

class ConfigReading final : public ConfigLink {
 public:
  // config: of a config.json, an object.
  explicit ConfigReading(Theirs config) : config_(std::move(config)) {}

  // Keys that nobody has named are refused too. Errors: ConfigError with all that was refused, naming `where`.
  OurKeys finish(const std::string& where);

  bool reading() const override { return true; }
  void integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent) override;
  void number(const char* theirs, const char* ours, std::optional<double> absent) override;
  void flag(const char* theirs, const char* ours, std::optional<bool> absent) override;
  void theirs(const char* key, const Theirs& value) override;
  void ours(const char* key, const std::string& value) override { set(key, value); }
  void besides(std::initializer_list<const char*> keys) override;
  Theirs take(const char* key) override;
  void set(const char* key, const std::string& value) override;
  std::int64_t our_integer(const char* key) const override;
  double our_number(const char* key) const override;
  bool our_flag(const char* key) const override;
  std::string our_text(const char* key) const override;
  void put(const char* key, const Theirs& value) override;
  void refuse(const std::string& why) override { refused_.push_back(why); }

 private:
  template <class T, class Fits>
  std::optional<T> value(const char* key, const char* kind, const std::optional<T>& absent, Fits fits);

  Theirs config_;
  std::set<std::string> named_;
  OurKeys keys_;
  std::vector<std::string> refused_;
};

class ConfigWriting final : public ConfigLink {
 public:
  explicit ConfigWriting(const Config& config);

  const Theirs& json() const { return json_; }
  // What theirs cannot say, a line each, by our keys; among it all settings of a model that no statement has named.
  std::vector<std::string> refused() const;

  bool reading() const override { return false; }
  void integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent) override;
  void number(const char* theirs, const char* ours, std::optional<double> absent) override;
  void flag(const char* theirs, const char* ours, std::optional<bool> absent) override;
  void theirs(const char* key, const Theirs& value) override { put(key, value); }
  void ours(const char* key, const std::string& value) override;
  void besides(std::initializer_list<const char*>) override {}
  Theirs take(const char* key) override;
  void set(const char* key, const std::string& value) override;
  std::int64_t our_integer(const char* key) const override;
  double our_number(const char* key) const override;
  bool our_flag(const char* key) const override;
  std::string our_text(const char* key) const override;
  void put(const char* key, const Theirs& value) override { json_[key] = value; }
  void refuse(const std::string& why) override { refused_.push_back(why); }

 private:
  const Value& our(const std::string& key) const;

  const Config& config_;
  Theirs json_;
  mutable std::set<std::string> named_;
  std::vector<std::string> refused_;
};

}  // namespace orthant
