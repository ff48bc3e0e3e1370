#include "core/pretrained/adapter_files.h"

#include <orthant/error.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/arch/parameter_table.h"
#include "core/arch/trained.h"

namespace orthant {
namespace {

constexpr std::string_view model_prefix = "base_model.model.";
constexpr std::string_view first_suffix = ".lora_A.weight";

[[noreturn]] void refuse_adapter(const std::string& why, const std::string& instead) {
  throw ConfigError(fmt::format("--adapter: {}\n  {}", why, instead));
}

// Of a shared expert, or of a dense block's FFN.
bool is_ffn_beside_experts(const ParamSpec& spec) {
  return !spec.expert.has_value() &&
         (spec.name.find(".mlp.") != std::string::npos || spec.name.find(".shared_experts.") != std::string::npos);
}

// What a table's parameter makes of an export as adapters.
void check_expressible(const ParamSpec& spec, ExpertForm form, const Family& family) {
  const std::string& model_type = family.model_type;
  const char* const merged = "leave --adapter out: the exported weights then have it";
  if (!spec.frozen && !is_adapter(spec.name)) {
    refuse_adapter(fmt::format("'{}' was trained itself, and an adapter's file has no place for it", spec.name),
                   merged);
  }
  if (spec.adapted && spec.expert.has_value() && form == ExpertForm::packed) {
    refuse_adapter(
        fmt::format("'{}' has an adapter, and this model's experts are packed into one tensor a layer, which "
                    "no linear module holds",
                    spec.name),
        merged);
  }
  if (spec.adapted && spec.expert.has_value() && model_type == "qwen2_moe") {
    // peft 0.21 maps experts' names for other families; of this one it loads the file and applies nothing.
    refuse_adapter(fmt::format("'{}' has an adapter, and peft does not apply those of qwen2_moe's experts", spec.name),
                   merged);
  }
  if (spec.adapted && family.names == MoeNames::mlp && model_type != "qwen2_moe" && is_ffn_beside_experts(spec)) {
    // peft 0.21 takes the last parts of their names, such as gate_proj, for those of the packed experts: it applies
    // nothing to these, and with experts' adapters beside them something else.
    refuse_adapter(
        fmt::format("'{}' has an adapter, and peft takes it for one of {}'s routed experts", spec.name, model_type),
        merged);
  }
  if (spec.adapted && spec.region == Region::router) {
    refuse_adapter(fmt::format("'{}' has an adapter, and the routers of transformers are no linear modules", spec.name),
                   merged);
  }
}

}  // namespace

std::vector<TensorPlace> adapter_places(const Config& config, const Twin& twin, ExpertForm form) {
  const Settings& settings = config.settings;
  if (settings.lora.rank == 0) {
    refuse_adapter("the run has no adapters", "leave --adapter out, or train with [lora] rank and targets");
  }
  if (twin.family == nullptr) {
    refuse_adapter("the model has no twin in transformers, so there is nothing that peft could adapt",
                   "leave --adapter out: the exported weights then have the adapters in them");
  }
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      check_expressible(spec, form, *twin.family);
    }
  }
  std::vector<TensorPlace> places;
  for (TensorPlace& place : tensor_places(*twin.family, settings, ExpertForm::each)) {
    if (is_adapter(place.ours)) {
      place.theirs = std::string(model_prefix) + place.theirs;
      places.push_back(std::move(place));
    }
  }
  return places;
}

std::string adapter_config_json(const Config& config, const Twin& twin) {
  const LoraSettings& lora = config.settings.lora;
  nlohmann::ordered_json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = nullptr;
  json["inference_mode"] = true;
  json["r"] = lora.rank;
  json["lora_alpha"] = lora.alpha;
  json["lora_dropout"] = 0.0;
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["use_rslora"] = false;
  json["modules_to_save"] = nullptr;
  json["target_modules"] = nlohmann::ordered_json::array();
  for (const TensorPlace& place : adapter_places(config, twin, ExpertForm::each)) {
    if (place.theirs.ends_with(first_suffix)) {
      const std::size_t length = place.theirs.size() - model_prefix.size() - first_suffix.size();
      json["target_modules"].push_back(place.theirs.substr(model_prefix.size(), length));
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace orthant
