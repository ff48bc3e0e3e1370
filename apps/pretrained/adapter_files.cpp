#include "apps/pretrained/adapter_files.h"

#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/arch/links.h"
#include "core/arch/trained.h"
#include "core/checkpoint/model_folder.h"
#include "core/run/starting_weights.h"

namespace orthant {
namespace {

constexpr std::string_view model_prefix = "base_model.model.";
constexpr std::string_view first_suffix = ".lora_A.weight";

// The matrix that a part of an adapter is of.
std::string adapted_matrix(const std::string& part) {
  return part.substr(0, part.size() - first_suffix.size()) + ".weight";
}

[[noreturn]] void refuse_adapter(const std::string& why, const std::string& instead) {
  throw ConfigError(fmt::format("--adapter: {}\n  {}", why, instead));
}

// Of a shared expert, or of a dense block's FFN.
bool is_ffn_beside_experts(const ParamSpec& spec) {
  return !spec.expert.has_value() &&
         (spec.name.find(".mlp.") != std::string::npos || spec.name.find(".shared_experts.") != std::string::npos);
}

bool is_joined(const Family& family, const std::string& name) {
  return std::any_of(family.joined.begin(), family.joined.end(), [&](const Family::Joined& joined) {
    return std::any_of(joined.ours.begin(), joined.ours.end(),
                       [&](const std::string& end) { return name.ends_with(end); });
  });
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
  if (spec.adapted && is_joined(family, spec.name)) {
    refuse_adapter(fmt::format("'{}' has an adapter, and is a part of one matrix in {}, which would be adapted whole",
                               spec.name, model_type),
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
  if (twin.expert_factor != 1) {
    refuse_adapter("the experts' last matrices are exported with moe.weight_scale in them, and adapters are not",
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

std::string adapter_refusal(const Config& config) {
  if (config.settings.lora.rank == 0) {
    return "";
  }
  try {
    const std::string& from = config.settings.train.from;
    const std::optional<Origin> origin =
        from.empty() ? std::nullopt : origin_of(run_of(starting_checkpoint(from, "train.from")));
    const Twin twin = twin_of(config, origin.has_value() ? &*origin : nullptr);
    adapter_places(config, twin, form_of(twin, origin.has_value() ? &*origin : nullptr));
  } catch (const ConfigError& refused) {
    return refused.what();
  }
  return "";
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
  json["use_rslora"] = lora.rank_stabilised;
  json["rank_pattern"] = nlohmann::ordered_json::object();
  json["alpha_pattern"] = nlohmann::ordered_json::object();
  json["modules_to_save"] = nullptr;
  json["target_modules"] = nlohmann::ordered_json::array();
  for (const TensorPlace& place : adapter_places(config, twin, ExpertForm::each)) {
    if (place.theirs.ends_with(first_suffix)) {
      const std::size_t length = place.theirs.size() - model_prefix.size() - first_suffix.size();
      const std::string module = place.theirs.substr(model_prefix.size(), length);
      json["target_modules"].push_back(module);
      const std::string matrix = adapted_matrix(place.ours);
      if (const std::int64_t rank = lora.rank_for(matrix); rank != lora.rank) {
        json["rank_pattern"][module] = rank;
      }
      if (const double alpha = adapter_alpha(lora, matrix); alpha != lora.alpha) {
        json["alpha_pattern"][module] = alpha;
      }
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace orthant
