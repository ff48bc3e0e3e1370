#include "apps/pretrained/twin.h"

#include <orthant/error.h>

#include <algorithm>
#include <map>

#include "apps/pretrained/plugin_families.h"
#include "core/arch/decoder.h"
#include "core/arch/links.h"
#include "core/arch/rotary.h"
#include "core/base/json.h"
#include "core/base/mapped_file.h"
#include "core/config/registry.h"
#include "core/config/value_text.h"
#include "core/layers/attention.h"

namespace orthant {
namespace {

// As `family` says it.
Twin as_family(const Config& config, const FamilyPtr& family) {
  ConfigLink writing(config);
  family->state(writing);
  Twin twin{.family = family, .config = {}, .reasons = writing.unsaid()};
  twin.config["model_type"] = family->model_type;
  twin.config["architectures"] = {family->architecture};
  twin.config.update(writing.written());
  if (!twin.reasons.empty()) {
    twin.family = nullptr;
  }
  return twin;
}

// A configuration with another value of "table.key".
Config with_value(Config config, const std::string& title, const std::string& key, const Value& value) {
  for (Table& table : config.tables) {
    if (table.path() == title) {
      std::map<std::string, Table::Entry> entries = table.entries();
      entries.at(key).value = value;
      table = Table(title, std::move(entries));
    }
  }
  return config;
}

// The first family that says it; none: without a family.
Twin first_of_all(const Config& config) {
  for (const FamilyPtr& family : families_of(config.settings.model.kind, *config.settings.catalogue)) {
    Twin twin = as_family(config, family);
    if (twin.family != nullptr) {
      return twin;
    }
  }
  return {};
}

// As above, of the model with other weights that compute the same.
Twin by_other_weights(const Config& config) {
  const Settings& s = config.settings;
  if (s.model.kind != decoder_kind) {
    return {};
  }
  const bool scaled = routed_in(links_of(s)) > 0 && s.moe.weight_scale != 1;
  const auto keys = read_keys<MultiHeadKeys>(s.model.own);
  const bool half_biased = s.model.attention == "multi_head" && keys.biases && !keys.output_bias;
  for (const auto& [fold, add_bias] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    if ((fold && !scaled) || (add_bias && !half_biased)) {
      continue;
    }
    Config other = config;
    if (fold) {
      other = with_value(std::move(other), "moe", "weight_scale", 1.0);
      other.settings.moe.weight_scale = 1;
    }
    if (add_bias) {
      other = with_value(std::move(other), "model", "output_bias", true);
      kind_values(other.settings, "model")["output_bias"] = true;
    }
    Twin twin = first_of_all(other);
    if (twin.family != nullptr) {
      twin.expert_factor = fold ? s.moe.weight_scale : 1;
      twin.zero_output_bias = add_bias;
      return twin;
    }
  }
  return {};
}

// The model under our own names: [model] and [moe] as they stand.
ConfigLink::Theirs own_config(const Config& config) {
  ConfigLink::Theirs json = {{"model_type", "orthant"}, {"architectures", ConfigLink::Theirs::array()}};
  for (const char* table : {"model", "moe"}) {
    for (const auto& [key, entry] : config.table(table).entries()) {
      std::visit([&, &name = key](const auto& value) { json[name] = value; }, entry.value);
    }
  }
  return json;
}

// Whether the model is the one that the family reads there. A key that this does not state has its default there.
bool still_is(const Config& config, const ConfigLink::Theirs& source, const Family& family, const Origin& origin,
              const std::string& where) {
  ConfigLink reading(source);
  family.state(reading);
  const OurKeys keys = reading.read(where, origin.passed_over);
  const std::map<std::string, std::string> stated(keys.begin(), keys.end());
  const std::vector<CoreKey> all = declared_keys(*config.settings.catalogue);
  return std::all_of(all.begin(), all.end(), [&](const CoreKey& key) {
    const auto found = stated.find(key.table + "." + key.spec.name);
    const std::string was = found != stated.end() ? found->second : toml_text(key.spec.default_value);
    return !of_forward_pass(key, config.settings) || reading.ours_besides().contains(key.table + "." + key.spec.name) ||
           toml_text(config.table(key.table).entries().at(key.spec.name).value) == was;
  });
}

// Keys that `json` does not have become those of the source.
void keep(const ConfigLink::Theirs& source, std::initializer_list<const char*> keys, ConfigLink::Theirs& json) {
  for (const char* key : keys) {
    if (source.contains(key)) {
      json.emplace(std::string(key), ConfigLink::Theirs(source[key]));
    }
  }
}

// Ids that nothing says yet.
void put_special_ids(const SpecialTokens& special, ConfigLink::Theirs& json) {
  const auto put = [&](const char* key, const std::optional<std::int32_t>& id, bool always) {
    if (id.has_value() && (!json.contains(key) || json.at(key).is_null())) {
      json[key] = *id;
    } else if (always) {
      json.emplace(key, nullptr);
    }
  };
  put("bos_token_id", special.bos, true);
  put("eos_token_id", special.eos, true);
  put("pad_token_id", special.pad, false);
}

}  // namespace

Twin twin_of(const Config& config, const Origin* origin) {
  if (origin != nullptr) {
    const FamilyPtr family = find_family(origin->model_type, *config.settings.catalogue);
    require(family != nullptr, "'{}' names the family \"{}\", which is not known here", origin->folder.string(),
            origin->model_type);
    return as_family(config, family);
  }
  for (Twin twin : {first_of_all(config), by_other_weights(config)}) {
    if (twin.family != nullptr) {
      return twin;
    }
  }
  const std::vector<FamilyPtr> all = families_of(config.settings.model.kind, *config.settings.catalogue);
  if (config.settings.model.kind != decoder_kind) {  // the one that comes nearest
    Twin found{.family = {}, .config = {}, .reasons = {fmt::format("model.kind = \"{}\"", config.settings.model.kind)}};
    for (const FamilyPtr& family : all) {
      Twin twin = as_family(config, family);
      if (family == all.front() || twin.reasons.size() < found.reasons.size()) {
        found = std::move(twin);
      }
    }
    return found;
  }
  const char* const nearest = routed_in(links_of(config.settings)) > 0 ? "mixtral" : "mistral";
  return as_family(config, find_family(nearest, *config.settings.catalogue));
}

ExpertForm form_of(const Twin& twin, const Origin* origin) {
  return twin.family != nullptr && packs_always(*twin.family) ? ExpertForm::packed
         : twin.family != nullptr && origin != nullptr        ? origin->experts
                                                              : ExpertForm::each;
}

bool positions_stay(const Settings& settings) {
  const RopeScaling scaling = read_keys<RotaryKeys>(settings.model.own).rope_scaling;
  return scaling == RopeScaling::yarn || scaling == RopeScaling::dynamic || scaling == RopeScaling::longrope;
}

std::string config_json(const Config& config, const Twin& twin, const Origin* origin, const Written& written) {
  constexpr const char* positions = "max_position_embeddings";
  ConfigLink::Theirs json = twin.family == nullptr ? own_config(config) : twin.config;
  const std::int64_t depths = twin.family == nullptr ? 0 : config.settings.model.mtp_depth;
  if (origin != nullptr) {
    const MappedFile file(origin->folder / "config.json");
    const std::string where = fmt::format("'{}'", file.path().string());
    ConfigLink::Theirs source(parse_json(file.bytes(), where));
    const auto quantisation = source.find("quantization_config");
    const bool quantised = quantisation != source.end() && !quantisation->is_null();
    if (quantised) {
      source.erase(quantisation);  // no weight is written so
    }
    const bool longer = !positions_stay(config.settings) && source.contains(positions) &&
                        source.at(positions).is_number_integer() &&
                        source.at(positions).get<std::int64_t>() < written.trained_with;
    if (twin.family != nullptr && still_is(config, source, *twin.family, *origin, where)) {
      if (written.types_kept && !quantised && !longer &&
          (depths == 0 || source.value(twin.family->mtp, std::int64_t{0}) == depths)) {
        return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
      }
      json = source;
    }
    keep(source, {positions, "bos_token_id", "eos_token_id", "pad_token_id"}, json);
    if (longer) {
      json[positions] = written.trained_with;
    }
    json.erase("dtype");
    json.erase("torch_dtype");
    if (written.types_kept && twin.family != nullptr) {
      keep(source, {"dtype", "torch_dtype"}, json);
    }
  }
  if (depths > 0) {
    json[twin.family->mtp] = depths;
  }
  if (config.settings.model.kind == decoder_kind) {
    json.emplace(positions, config.settings.data.sequence_length);
  }
  put_special_ids(written.special, json);
  if (!json.contains("dtype")) {
    json.emplace("torch_dtype", written.dtype == DType::bf16 ? "bfloat16" : "float32");
  }
  return json.dump(2) + "\n";
}

}  // namespace orthant
