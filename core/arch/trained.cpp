#include "core/arch/trained.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace orthant {
namespace {

constexpr std::string_view weight_suffix = ".weight";

// The part of W's adapter that has dimension `kept` of W; the other one is the rank.
ParamSpec adapter_spec(const ParamSpec& w, int kept, const LoraSettings& lora) {
  const int other = 1 - kept;
  ParamSpec spec = w;
  spec.name = adapter_name(w.name, kept == 1 ? 'A' : 'B');
  const std::int64_t rank = lora.rank_for(w.name);
  spec.global = kept == 1 ? Shape{rank, w.global[1]} : Shape{w.global[0], rank};
  spec.adapted = false;
  spec.init = kept == 1 ? Init::normal : Init::zeros;
  spec.std = static_cast<float>(lora.init_std);
  spec.decay = true;
  spec.units[other] = w.split[other].has_value() ? 1 : 0;  // one unit: all hold it
  spec.repeats = w.split[other].has_value() || (w.repeats && w.split[kept].has_value());
  return spec;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return matches(p, name); });
}

bool adaptable(const LayerSpecs& layer, const ParamSpec& spec) {
  return !layer.looked_up && spec.global.rank() == 2;
}

std::string adapter_name(const std::string& parameter, char letter) {
  const bool usual = parameter.ends_with(weight_suffix);
  const std::string stem = usual ? parameter.substr(0, parameter.size() - weight_suffix.size()) : parameter;
  return fmt::format("{}.lora_{}{}", stem, letter, weight_suffix);
}

bool is_adapter(const std::string& name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

namespace {

// Of the first pattern that stands for the name. Lists of unlike lengths are refused, but not before everybody has
// looked.
template <class T>
T of_first(const std::vector<std::string>& patterns, const std::vector<T>& values, const std::string& name, T other) {
  for (std::size_t i = 0; i < std::min(patterns.size(), values.size()); ++i) {
    if (matches(patterns[i], name)) {
      return values[i];
    }
  }
  return other;
}

}  // namespace

std::int64_t LoraSettings::rank_for(const std::string& matrix) const {
  return of_first(rank_of, ranks, matrix, rank);
}

double adapter_alpha(const LoraSettings& lora, const std::string& matrix) {
  return of_first(lora.alpha_of, lora.alphas, matrix, lora.alpha);
}

double LoraSettings::scale_for(const std::string& matrix) const {
  const double r = static_cast<double>(rank_for(matrix));
  return adapter_alpha(*this, matrix) / (rank_stabilised ? std::sqrt(r) : r);
}

void add_adapters(std::vector<LayerSpecs>& table, const Settings& settings) {
  const LoraSettings& lora = settings.lora;
  if (lora.rank == 0) {
    return;
  }
  std::vector<LayerSpecs> all;
  for (LayerSpecs& layer : table) {
    LayerSpecs adapters{.layer = layer.layer, .name = layer.name + " adapters", .params = {}};
    for (ParamSpec& w : layer.params) {
      if (adaptable(layer, w) && matches_any(lora.targets, w.name)) {
        adapters.params.push_back(adapter_spec(w, 1, lora));
        adapters.params.push_back(adapter_spec(w, 0, lora));
        w.adapted = true;
      }
    }
    all.push_back(std::move(layer));
    if (!adapters.params.empty()) {
      all.push_back(std::move(adapters));
    }
  }
  table = std::move(all);
}

std::optional<std::size_t> rate_of(const OptimizerSettings& optimizer, const std::string& name) {
  const auto first = std::find_if(optimizer.lr_of.begin(), optimizer.lr_of.end(),
                                  [&](const std::string& pattern) { return matches(pattern, name); });
  const auto at = static_cast<std::size_t>(first - optimizer.lr_of.begin());
  // Lists of unlike lengths are refused, but not before everybody has looked.
  return at < std::min(optimizer.lr_of.size(), optimizer.lr_scales.size()) ? std::optional(at) : std::nullopt;
}

void set_rates(std::vector<LayerSpecs>& table, const OptimizerSettings& optimizer) {
  if (optimizer.lr_of.empty() && optimizer.no_decay.empty()) {
    return;
  }
  for (LayerSpecs& layer : table) {
    for (ParamSpec& spec : layer.params) {
      if (const std::optional<std::size_t> at = rate_of(optimizer, spec.name)) {
        spec.lr_scale = optimizer.lr_scales[*at];
      }
      spec.decay = spec.decay && !matches_any(optimizer.no_decay, spec.name);
    }
  }
}

bool is_mtp(const std::string& name) {
  return name.starts_with("mtp.") || name.starts_with(std::string(gate_state_prefix) + "mtp.");
}

bool may_begin_anew(const Settings& settings, const std::string& name) {
  const KeyValues& train = kind_values(settings, "train");
  const auto anew = train.find("anew");
  return anew != train.end() && matches_any(std::get<std::vector<std::string>>(anew->second), name);
}

void leave_out_mtp(Settings& settings) {
  if (settings.model.mtp_depth == 0) {
    return;
  }
  settings.model.mtp_depth = 0;
  std::vector<std::string> names;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      names.push_back(spec.name);
    }
  }
  const auto idle = [&](const std::string& pattern) {
    return std::none_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); });
  };
  for (std::vector<std::string>* patterns : {&settings.train.freeze, &settings.train.train_only, &settings.lora.targets,
                                             &settings.lora.train_also, &settings.optimizer.no_decay}) {
    std::erase_if(*patterns, idle);
  }
  if (settings.lora.targets.empty()) {
    settings.lora.rank = 0;
  }
  const auto erase_idle = [&](std::vector<std::string>& patterns, auto& values) {
    for (std::size_t i = patterns.size(); i-- > 0;) {
      if (idle(patterns[i]) && i < values.size()) {
        patterns.erase(patterns.begin() + static_cast<std::ptrdiff_t>(i));
        values.erase(values.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  };
  erase_idle(settings.lora.rank_of, settings.lora.ranks);
  erase_idle(settings.lora.alpha_of, settings.lora.alphas);
  erase_idle(settings.optimizer.lr_of, settings.optimizer.lr_scales);
}

void freeze(std::vector<LayerSpecs>& table, const Settings& settings) {
  const TrainSettings& train = settings.train;
  const LoraSettings& lora = settings.lora;
  for (LayerSpecs& layer : table) {
    for (ParamSpec& spec : layer.params) {
      const bool adapters_only = lora.rank > 0 && !is_adapter(spec.name) && !matches_any(lora.train_also, spec.name);
      const bool left_out = !train.train_only.empty() && !matches_any(train.train_only, spec.name);
      spec.frozen = adapters_only || left_out || matches_any(train.freeze, spec.name);
    }
  }
}

}  // namespace orthant
