#include "core/pretrained/twin.h"

#include <orthant/error.h>

#include <algorithm>

#include "core/arch/parameter_table.h"
#include "core/base/json.h"
#include "core/config/value_text.h"
#include "core/data/mapped_file.h"

namespace orthant {
namespace {

// As `family` says it.
Twin as_family(const Config& config, const Family& family) {
  ConfigLink writing(config);
  family.state(writing);
  Twin twin{.family = &family, .config = {}, .reasons = writing.unsaid()};
  twin.config["model_type"] = family.model_type;
  twin.config["architectures"] = {family.architecture};
  twin.config.update(writing.written());
  if (!twin.reasons.empty()) {
    twin.family = nullptr;
  }
  return twin;
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

bool still_is(const Config& config, const OurKeys& keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
    const std::size_t dot = key.first.find('.');
    const Table& table = config.table(key.first.substr(0, dot));
    return toml_text(table.entries().at(key.first.substr(dot + 1)).value) == key.second;
  });
}

}  // namespace

Twin twin_of(const Config& config, const Origin* origin) {
  if (origin != nullptr) {
    const Family* family = find_family(origin->model_type);
    require(family != nullptr, "'{}' names the family \"{}\", which is not known here", origin->folder.string(),
            origin->model_type);
    return as_family(config, *family);
  }
  for (const Family& family : families()) {
    Twin twin = as_family(config, family);
    if (twin.family != nullptr) {
      return twin;
    }
  }
  return as_family(config, *find_family(routed_blocks(config.settings) > 0 ? "mixtral" : "mistral"));
}

std::string config_json(const Config& config, const Twin& twin, const Origin* origin, std::optional<DType> dtype) {
  ConfigLink::Theirs json = twin.family == nullptr ? own_config(config) : twin.config;
  if (origin != nullptr && twin.family != nullptr) {
    const MappedFile file(origin->folder / "config.json");
    const std::string where = fmt::format("'{}'", file.path().string());
    const ConfigLink::Theirs source(parse_json(file.bytes(), where));
    ConfigLink reading(source);
    twin.family->state(reading);
    if (still_is(config, reading.read(where))) {
      if (!dtype.has_value()) {
        return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
      }
      json = source;
      json.erase("dtype");
    }
  }
  json.emplace("max_position_embeddings", config.settings.data.sequence_length);
  json.emplace("bos_token_id", nullptr);
  json.emplace("eos_token_id", nullptr);
  json["torch_dtype"] = dtype.value_or(DType::f32) == DType::bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

}  // namespace orthant
