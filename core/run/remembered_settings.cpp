#include "core/run/remembered_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "core/config/value_text.h"

namespace orthant {
namespace {

constexpr std::array<std::string_view, 6> whole_tables = {"data", "model", "moe", "lora", "optimizer", "preference"};
constexpr std::array<std::string_view, 11> single_keys = {"run.skip_not_finite", "run.seed",      "run.dtype",
                                                          "batch.sequences",     "train.freeze",  "train.train_only",
                                                          "train.mtp_weight",    "distil.weight", "distil.temperature",
                                                          "batch.grow_after",    "batch.grow_to"};

std::map<std::string, std::string> values_of(const Config& config) {
  std::map<std::string, std::string> values;
  for (const Table& table : config.tables) {
    const bool whole = std::find(whole_tables.begin(), whole_tables.end(), table.path()) != whole_tables.end();
    for (const auto& [key, entry] : table.entries()) {
      const std::string name = table.path() + "." + key;
      if (whole || std::find(single_keys.begin(), single_keys.end(), name) != single_keys.end()) {
        values[name] = toml_text(entry.value);
      }
    }
  }
  return values;
}

}  // namespace

std::string remembered_settings(const Config& config) {
  return nlohmann::json(values_of(config)).dump();
}

std::vector<std::string> changed_settings(const Config& config, const std::string& remembered) {
  const nlohmann::json before = nlohmann::json::parse(remembered, nullptr, false);
  std::vector<std::string> changed;
  for (const auto& [name, value] : values_of(config)) {
    if (!before.is_object() || !before.contains(name) || !before[name].is_string()) {
      continue;
    }
    const std::string& was = before[name].get_ref<const std::string&>();
    if (was != value) {
      changed.push_back(fmt::format("{} = {} (was {})", name, value, was));
    }
  }
  return changed;
}

}  // namespace orthant
