#include "core/run/remembered_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/arch/decoder.h"
#include "core/config/registry.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

constexpr std::array<std::string_view, 5> whole_tables = {"data", "model", "moe", "lora", "optimizer"};
constexpr std::array<std::string_view, 11> single_keys = {
    "train.objective",  "run.skip_not_finite", "run.seed",         "run.dtype",     "batch.sequences", "train.freeze",
    "train.train_only", "train.mtp_weight",    "batch.grow_after", "batch.grow_to", "run.steps"};

constexpr const char* steps_key = "run.steps";

std::map<std::string, std::string> values_of(const Config& config) {
  std::set<std::string> of_kinds;
  for (const CoreKey& key : declared_keys(*config.settings.catalogue)) {
    if (key.of_kind) {
      of_kinds.insert(key.table + "." + key.spec.name);
    }
  }
  std::map<std::string, std::string> values;
  for (const Table& table : config.tables) {
    const bool whole = std::find(whole_tables.begin(), whole_tables.end(), table.path()) != whole_tables.end();
    for (const auto& [key, entry] : table.entries()) {
      const std::string name = table.path() + "." + key;
      if (whole || of_kinds.contains(name) ||
          std::find(single_keys.begin(), single_keys.end(), name) != single_keys.end()) {
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
    if (was != value && name != steps_key) {
      changed.push_back(fmt::format("{} = {} (was {})", name, value, was));
    }
  }
  return changed;
}

std::string remembered_kind(const std::string& remembered) {
  const nlohmann::json before = nlohmann::json::parse(remembered, nullptr, false);
  const auto found = before.is_object() ? before.find("model.kind") : before.end();
  if (!before.is_object() || found == before.end() || !found->is_string()) {
    return decoder_kind;
  }
  const std::string& text = found->get_ref<const std::string&>();  // as TOML: in quotes
  return text.size() > 2 ? text.substr(1, text.size() - 2) : text;
}

std::optional<std::int64_t> remembered_steps(const std::string& remembered) {
  const nlohmann::json before = nlohmann::json::parse(remembered, nullptr, false);
  const auto found = before.is_object() ? before.find(steps_key) : before.end();
  std::int64_t steps = 0;
  if (!before.is_object() || found == before.end() || !found->is_string()) {
    return std::nullopt;
  }
  const std::string& text = found->get_ref<const std::string&>();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(steps) : std::nullopt;
}

}  // namespace orthant
