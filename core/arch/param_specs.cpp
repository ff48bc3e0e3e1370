#include "core/arch/param_specs.h"

#include <utility>

#include <fmt/format.h>
#include <orthant/part.h>

namespace orthant {

ParamSpec matrix_spec(std::string name, Region region, std::int64_t rows, std::int64_t columns, float std) {
  return {.name = std::move(name), .global = {rows, columns}, .region = region, .init = Init::normal, .std = std};
}

float base_std(const Settings& settings) {
  return static_cast<float>(settings.model.init_std);
}

Init norm_init(const Settings& settings) {
  return settings.model.norm_plus_one ? Init::zeros : Init::ones;
}

std::vector<ParamSpec> norm_specs(const Settings& settings, const std::string& stem) {
  const std::int64_t d = settings.model.d_model;
  std::vector<ParamSpec> specs = {
      {.name = stem + ".weight", .global = {d}, .region = Region::norm, .init = norm_init(settings), .decay = false}};
  if (settings.model.norm == NormKind::layernorm) {
    specs.push_back(
        {.name = stem + ".bias", .global = {d}, .region = Region::norm, .init = Init::zeros, .decay = false});
  }
  return specs;
}

std::vector<ParamSpec> ffn_in_specs(const Settings& settings, const std::string& gate, const std::string& up,
                                    Region region, std::int64_t f, std::optional<std::int64_t> expert) {
  std::vector<ParamSpec> specs;
  auto add = [&](const std::string& name) {
    ParamSpec p = matrix_spec(name, region, f, settings.model.d_model, base_std(settings));
    p.split[0] = Dim::ffn;
    p.expert = expert;
    specs.push_back(p);
  };
  if (is_gated(settings.model.activation)) {
    add(gate);
  }
  add(up);
  return specs;
}

ParamSpec ffn_out_spec(const Settings& settings, const std::string& down, Region region, std::int64_t f,
                       std::optional<std::int64_t> expert) {
  ParamSpec p = matrix_spec(down, region, settings.model.d_model, f, residual_std(settings));
  p.split[1] = Dim::ffn;
  p.expert = expert;
  return p;
}

std::vector<ParamSpec> ffn_specs(const Settings& settings, const std::string& stem, std::int64_t f) {
  std::vector<ParamSpec> specs =
      ffn_in_specs(settings, stem + ".gate_proj.weight", stem + ".up_proj.weight", Region::ffn, f);
  specs.push_back(ffn_out_spec(settings, stem + ".down_proj.weight", Region::ffn, f));
  return specs;
}

std::string wrong_part_spec(const ParamSpec& spec, const std::string& stem) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  if (!spec.name.starts_with(stem + ".")) {
    return fmt::format("parameter '{}' does not begin with '{}.'", spec.name, stem);
  }
  const int rank = spec.global.rank();
  std::int64_t elements = 1;
  for (int i = 0; i < rank; ++i) {
    const std::int64_t size = spec.global[i];
    elements = size < 1 || size > most / elements ? 0 : elements * size;
    if (elements == 0) {
      break;
    }
  }
  if (rank < 1 || rank > 2 || elements == 0) {
    return fmt::format("parameter '{}' has shape {}, expected one or two sizes above 0, of {} elements at most",
                       spec.name, spec.global, most);
  }
  for (int i = 0; i < 2; ++i) {
    const std::int64_t size = i < rank ? spec.global[i] : 1;
    if (spec.units[i] < 0 || (spec.units[i] > 0 && size % spec.units[i] != 0)) {
      return fmt::format("parameter '{}': {} units do not divide its size {}", spec.name, spec.units[i], size);
    }
    if (spec.split[i].has_value() && i >= rank) {
      return fmt::format("parameter '{}' is split along a dimension that it has not", spec.name);
    }
  }
  return spec.expert.has_value() ? fmt::format("parameter '{}' is of an expert; a part has none", spec.name) : "";
}

}  // namespace orthant
