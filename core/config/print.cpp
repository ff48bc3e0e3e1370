#include "core/config/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "core/config/registry.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

// One line of TOML. Comments hold no control characters, whatever a file may be called.
std::string line(const std::string& key, const Table::Entry& entry) {
  std::string origin = entry.origin;
  std::replace_if(
      origin.begin(), origin.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return fmt::format("{:<48} # {}\n", key + " = " + toml_text(entry.value), origin);
}

// As it is written: one that nobody declared, of a plugin that was not asked, may need quotes.
std::string toml_key(const std::string& key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return bare ? key : toml_text(Value(key));
}

Json to_json(const Value& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

// A table of the core in the documentation's order; at its end what a kind reads whose plugin was not asked.
std::vector<std::pair<std::string, const Table::Entry*>> in_order(const Table& table,
                                                                  const std::vector<CoreKey>& keys) {
  std::vector<std::pair<std::string, const Table::Entry*>> entries;
  std::map<std::string, Table::Entry> left = table.entries();
  for (const CoreKey& key : keys) {
    if (key.table == table.path()) {
      entries.emplace_back(key.spec.name, &table.entries().at(key.spec.name));
      left.erase(key.spec.name);
    }
  }
  for (const auto& [name, entry] : left) {
    entries.emplace_back(name, &table.entries().at(name));
  }
  return entries;
}

}  // namespace

std::string resolved_toml(const Config& config) {
  std::string text;
  const std::vector<CoreKey> keys = declared_keys(*config.settings.catalogue);
  for (const Table& table : config.tables) {
    text += fmt::format("[{}]\n", table.path());
    for (const auto& [name, entry] : in_order(table, keys)) {
      text += line(toml_key(name), *entry);
    }
    text += "\n";
  }
  for (const PluginRequest& plugin : config.plugins) {
    text += fmt::format("[{}]\n", plugin.table.path());
    for (const auto& [name, entry] : plugin.table.entries()) {
      text += line(toml_key(name), entry);
    }
    text += "\n";
  }
  text.pop_back();
  return text;
}

std::string resolved_json(const Config& config) {
  Json all = Json::object();
  const std::vector<CoreKey> keys = declared_keys(*config.settings.catalogue);
  for (const Table& table : config.tables) {
    for (const auto& [name, entry] : in_order(table, keys)) {
      all[table.path()][name] = to_json(entry->value);
    }
  }
  all["plugins"] = Json::object();
  for (const PluginRequest& plugin : config.plugins) {
    Json& of_plugin = all["plugins"][plugin.name] = Json::object();
    for (const auto& [name, entry] : plugin.table.entries()) {
      of_plugin[name] = to_json(entry.value);
    }
  }
  return all.dump(2) + "\n";
}

}  // namespace orthant
