#include "core/pretrained/config_link.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/arch/parameter_table.h"
#include "core/config/registry.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;

// Keys of ours that say nothing about a model's forward pass without dropout and noise, where no token is dropped.
const std::set<std::string> of_training = {"model.dropout",        "model.init_std",   "moe.aux_loss",
                                           "moe.balance_over",     "moe.z_loss",       "moe.jitter",
                                           "moe.capacity_factor",  "moe.group_tokens", "moe.drop_policy",
                                           "moe.bias_update_rate", "model.vocab_size"};

std::string shown(const Theirs& value) {
  const std::string text = value.dump();
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

bool same(const Theirs& a, const Theirs& b) {
  return a.is_number() && b.is_number() ? a.get<double>() == b.get<double>() : a == b;
}

std::pair<std::string, std::string> split_key(const std::string& key) {
  const std::size_t dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

template <class T, class Fits>
std::optional<T> ConfigReading::value(const char* key, const char* kind, const std::optional<T>& absent, Fits fits) {
  const Theirs found = take(key);
  if (found.is_null()) {
    if (!absent.has_value()) {
      refuse(fmt::format("{} is missing: {} was expected", key, kind));
    }
    return absent;
  }
  if (!fits(found)) {
    refuse(fmt::format("{} = {}: {} was expected", key, shown(found), kind));
    return std::nullopt;
  }
  return found.get<T>();
}

void ConfigReading::integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent) {
  const auto whole = [](const Theirs& v) { return v.is_number_integer(); };
  if (const auto v = value<std::int64_t>(theirs, "a whole number", absent, whole)) {
    set(ours, std::to_string(*v));
  }
}

void ConfigReading::number(const char* theirs, const char* ours, std::optional<double> absent) {
  const auto finite = [](const Theirs& v) { return v.is_number() && std::isfinite(v.get<double>()); };
  if (const auto v = value<double>(theirs, "a number", absent, finite)) {
    set(ours, toml_text(Value(*v)));
  }
}

void ConfigReading::flag(const char* theirs, const char* ours, std::optional<bool> absent) {
  if (const auto v =
          value<bool>(theirs, "true or false", absent, [](const Theirs& found) { return found.is_boolean(); })) {
    set(ours, *v ? "true" : "false");
  }
}

void ConfigReading::theirs(const char* key, const Theirs& value) {
  const Theirs found = take(key);
  if (!found.is_null() && !same(found, value)) {
    refuse(fmt::format("{} = {}: only {} can be computed here", key, shown(found), shown(value)));
  }
}

void ConfigReading::besides(std::initializer_list<const char*> keys) {
  named_.insert(keys.begin(), keys.end());
}

Theirs ConfigReading::take(const char* key) {
  named_.insert(key);
  const auto found = config_.find(key);
  return found == config_.end() ? Theirs() : *found;
}

void ConfigReading::set(const char* key, const std::string& value) {
  keys_.emplace_back(key, value);
}

OurKeys ConfigReading::finish(const std::string& where) {
  for (const auto& [key, value] : config_.items()) {
    if (!named_.contains(key)) {
      refuse(fmt::format("{} = {}: this key is not known for such a model, so that it might change what it computes",
                         key, shown(value)));
    }
  }
  if (!refused_.empty()) {
    throw ConfigError(fmt::format("{} cannot be read as a model of ours:\n  {}", where, fmt::join(refused_, "\n  ")));
  }
  return keys_;
}

std::int64_t ConfigReading::our_integer(const char* key) const {
  fail("asked for {} while it is read", key);
}
double ConfigReading::our_number(const char* key) const {
  fail("asked for {} while it is read", key);
}
bool ConfigReading::our_flag(const char* key) const {
  fail("asked for {} while it is read", key);
}
std::string ConfigReading::our_text(const char* key) const {
  fail("asked for {} while it is read", key);
}
void ConfigReading::put(const char* key, const Theirs&) {
  fail("told {} while it is read", key);
}

ConfigWriting::ConfigWriting(const Config& config) : config_(config) {}

const Value& ConfigWriting::our(const std::string& key) const {
  named_.insert(key);
  const auto [table, name] = split_key(key);
  const auto& entries = config_.table(table).entries();
  const auto found = entries.find(name);
  require(found != entries.end(), "there is no key {}", key);
  return found->second.value;
}

std::int64_t ConfigWriting::our_integer(const char* key) const {
  const Settings& s = config_.settings;
  const std::int64_t written = std::get<std::int64_t>(our(key));
  const std::string name = key;
  return name == "model.kv_heads"   ? kv_heads_of(s)
         : name == "model.head_dim" ? head_dim_of(s)
         : name == "model.d_ff"     ? d_ff_of(s)
         : name == "moe.d_expert"   ? d_expert_of(s)
                                    : written;
}

double ConfigWriting::our_number(const char* key) const {
  return std::get<double>(our(key));
}

bool ConfigWriting::our_flag(const char* key) const {
  return std::get<bool>(our(key));
}

std::string ConfigWriting::our_text(const char* key) const {
  return std::get<std::string>(our(key));
}

void ConfigWriting::integer(const char* theirs, const char* ours, std::optional<std::int64_t>) {
  put(theirs, our_integer(ours));
}
void ConfigWriting::number(const char* theirs, const char* ours, std::optional<double>) {
  put(theirs, our_number(ours));
}
void ConfigWriting::flag(const char* theirs, const char* ours, std::optional<bool>) {
  put(theirs, our_flag(ours));
}

void ConfigWriting::ours(const char* key, const std::string& value) {
  const std::string is = toml_text(our(key));
  if (is != value) {
    refuse(fmt::format("{} = {}", key, is));
  }
}

Theirs ConfigWriting::take(const char* key) {
  fail("asked for {} while it is written", key);
}
void ConfigWriting::set(const char* key, const std::string&) {
  fail("told {} while it is written", key);
}

std::vector<std::string> ConfigWriting::refused() const {
  std::vector<std::string> all = refused_;
  for (const CoreKey& key : core_keys()) {
    const std::string name = key.table + "." + key.spec.name;
    const bool of_model = key.table == "model" || (key.table == "moe" && config_.settings.moe.experts > 0);
    const bool idle = name == "model.d_ff" && routed_blocks(config_.settings) == config_.settings.model.layers;
    if (!of_model || idle || named_.contains(name) || of_training.contains(name)) {
      continue;
    }
    const Value& is = config_.table(key.table).entries().at(key.spec.name).value;
    if (is != key.spec.default_value) {
      all.push_back(fmt::format("{} = {}", name, toml_text(is)));
    }
  }
  return all;
}

}  // namespace orthant
