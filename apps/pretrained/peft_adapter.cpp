#include "apps/pretrained/peft_adapter.h"

#include <orthant/error.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/base/json.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Theirs = ConfigLink::Theirs;

constexpr std::string_view peft_prefix = "base_model.model.";
constexpr std::string_view peft_first = ".lora_A.weight", peft_second = ".lora_B.weight";
constexpr std::size_t most_lines = 8;

Theirs read_adapter_config(const fs::path& folder) {
  const fs::path path = folder / "adapter_config.json";
  if (!fs::exists(path)) {
    throw ConfigError(
        fmt::format("--adapter: '{}' has no adapter_config.json: give the folder that peft saved", folder.string()));
  }
  const MappedFile file(path);
  const Json json = parse_json(file.bytes(), fmt::format("'{}'", path.string()));
  if (!json.is_object()) {
    throw ConfigError(fmt::format("'{}': a JSON object was expected", path.string()));
  }
  return Theirs(json);
}

bool says_nothing(const Theirs& value) {
  return value.is_null() || value == false || value == "none" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Keys that say what is not computed here.
void check_method(const Theirs& config, std::vector<std::string>& refused) {
  const auto at = [&](const char* key) { return config.value(key, Theirs()); };
  if (at("peft_type") != "LORA") {
    refused.push_back(fmt::format("peft_type = {}: \"LORA\" can be added", at("peft_type").dump()));
  }
  for (const char* key :
       {"use_dora", "use_qalora", "lora_bias", "bias", "fan_in_fan_out", "target_parameters", "layer_replication",
        "trainable_token_indices", "modules_to_save", "alora_invocation_tokens", "arrow_config", "use_bdlora"}) {
    if (!says_nothing(at(key))) {
      refused.push_back(fmt::format("{} = {}: this cannot be added", key, at(key).dump()));
    }
  }
  // These change the model's own weights where an adapter begins.
  const Theirs begin = at("init_lora_weights");
  if (begin.is_string() && begin != "gaussian" && begin != "orthogonal" && begin != "eva") {
    refused.push_back(
        fmt::format("init_lora_weights = {}: such an adapter belongs to other weights than the published ones; save "
                    "it as peft's path_initial_model_for_weight_conversion does",
                    begin.dump()));
  }
}

// Of alpha_pattern, whose keys are names of modules or their ends.
double alpha_of(const Theirs& config, const std::string& module, std::vector<std::string>& refused) {
  const Theirs all = config.value("lora_alpha", Theirs()), patterns = config.value("alpha_pattern", Theirs::object());
  Theirs alpha = all;
  for (const auto& [key, value] : patterns.items()) {
    if (module == key || module.ends_with("." + key)) {
      alpha = value;
      break;
    }
  }
  if (!alpha.is_number() || !std::isfinite(alpha.get<double>())) {
    refused.push_back(fmt::format("the alpha of {} is {}: a number was expected", module, alpha.dump()));
    return 0;
  }
  return alpha.get<double>();
}

bool is_plain(const std::string& key) {
  return std::all_of(key.begin(), key.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

std::string lines_of(std::vector<std::string> lines) {
  const std::size_t all = lines.size();
  if (all > most_lines) {
    lines.resize(most_lines);
    lines.push_back(fmt::format("and {} more", all - most_lines));
  }
  return fmt::format("{}", fmt::join(lines, "\n  "));
}

void refuse_adapter_if_any(const fs::path& folder, const std::vector<std::string>& refused) {
  if (!refused.empty()) {
    throw ConfigError(fmt::format("the adapter of '{}':\n  {}", folder.string(), lines_of(refused)));
  }
}

}  // namespace

PeftAdapter::PeftAdapter(const fs::path& folder) : folder_(folder), weights_(folder, "adapter_model") {
  read_pairs(read_adapter_config(folder));
}

void PeftAdapter::read_pairs(const Theirs& config) {
  std::vector<std::string> refused;
  check_method(config, refused);
  const Theirs patterns = config.value("alpha_pattern", Theirs::object());
  for (const auto& [key, value] : patterns.items()) {
    if (!is_plain(key)) {
      refused.push_back(fmt::format("alpha_pattern has {}: names of modules, or their ends, are read", key));
    }
  }
  const SourceFloats floats(weights_, std::nullopt, false);
  const bool stabilised = config.value("use_rslora", Theirs(false)) == true;
  for (const std::string& name : weights_.names()) {
    const bool is_first = name.ends_with(peft_first), is_second = name.ends_with(peft_second);
    if (!name.starts_with(peft_prefix) || !(is_first || is_second)) {
      refused.push_back(
          fmt::format("{}: a matrix {}NAME{} or {} was expected", name, peft_prefix, peft_first, peft_second));
      continue;
    }
    const std::string module = name.substr(peft_prefix.size(), name.size() - peft_prefix.size() - peft_first.size());
    const std::string other = std::string(peft_prefix) + module + std::string(is_first ? peft_second : peft_first);
    const FileTensor &own = *weights_.find(name), *beside = weights_.find(other);
    const std::string unreadable = floats.unreadable(own);
    if (beside == nullptr || own.sizes.size() != 2 || beside->sizes.size() != 2 ||
        own.sizes[is_first ? 0 : 1] != beside->sizes[is_first ? 1 : 0] || own.sizes[is_first ? 0 : 1] == 0) {
      refused.push_back(fmt::format(
          "{} is [{}] and {} {}: [rank, columns] and [rows, rank] were expected", name, fmt::join(own.sizes, ", "),
          other,
          beside == nullptr ? std::string("is not there") : fmt::format("is [{}]", fmt::join(beside->sizes, ", "))));
    } else if (!unreadable.empty()) {
      refused.push_back(unreadable);
    } else {
      Pair& pair = pairs_[module + ".weight"];
      (is_first ? pair.columns : pair.rows) = own.sizes[is_first ? 1 : 0];
      pair.rank = own.sizes[is_first ? 0 : 1];
      std::vector<float>& values = is_first ? pair.a : pair.b;
      values.resize(static_cast<std::size_t>(own.sizes[0] * own.sizes[1]));
      floats.read(name, 0, values);
      if (is_first) {
        const double rank = static_cast<double>(pair.rank);
        pair.scale = alpha_of(config, module, refused) / (stabilised ? std::sqrt(rank) : rank);
      }
    }
  }
  if (refused.empty() && pairs_.empty()) {
    refused.emplace_back("adapter_model.safetensors has no matrices");
  }
  refuse_adapter_if_any(folder_, refused);
}

void PeftAdapter::check(const std::vector<TensorPlace>& places) const {
  std::map<std::string, std::vector<std::int64_t>> sizes;
  for (const TensorPlace& place : places) {
    sizes[place.theirs] = place.sizes;
  }
  std::vector<std::string> refused;
  for (const auto& [name, pair] : pairs_) {
    const auto found = sizes.find(name);
    if (found == sizes.end()) {
      refused.push_back(fmt::format("{}: the model has no such matrix", name));
    } else if (found->second != std::vector<std::int64_t>{pair.rows, pair.columns}) {
      refused.push_back(fmt::format("{}: the adapter is of [{}, {}], the model has [{}]", name, pair.rows, pair.columns,
                                    fmt::join(found->second, ", ")));
    }
  }
  refuse_adapter_if_any(folder_, refused);
}

void PeftAdapter::add(const TensorPlace& place, std::span<float> out) const {
  const auto found = pairs_.find(place.theirs);
  if (found == pairs_.end()) {
    return;
  }
  const Pair& pair = found->second;
  std::vector<double> row(static_cast<std::size_t>(pair.columns));  // of the product
  std::int64_t made = -1;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t in_theirs = place.begin + place.at(static_cast<std::int64_t>(i));
    const std::int64_t r = in_theirs / pair.columns;
    if (r != made) {
      made = r;
      std::fill(row.begin(), row.end(), 0.0);
      for (std::int64_t k = 0; k < pair.rank; ++k) {
        const double factor = pair.scale * pair.b[static_cast<std::size_t>(r * pair.rank + k)];
        const float* const a = pair.a.data() + k * pair.columns;
        for (std::int64_t j = 0; j < pair.columns; ++j) {
          row[static_cast<std::size_t>(j)] += factor * a[j];
        }
      }
    }
    out[i] = static_cast<float>(out[i] + row[static_cast<std::size_t>(in_theirs % pair.columns)]);
  }
}

}  // namespace orthant
