#include "core/arch/param_specs.h"

#include <utility>

#include <orthant/part.h>

namespace orthant {

ParamSpec matrix_spec(std::string name, Region region, std::int64_t rows, std::int64_t columns, float std) {
  return {.name = std::move(name), .global = {rows, columns}, .region = region, .init = Init::normal, .std = std};
}

float base_std(const Settings& settings) {
  return static_cast<float>(settings.model.init_std);
}

std::vector<ParamSpec> norm_specs(const Settings& settings, const std::string& stem) {
  const std::int64_t d = settings.model.d_model;
  std::vector<ParamSpec> specs = {
      {.name = stem + ".weight", .global = {d}, .region = Region::norm, .init = Init::ones, .decay = false}};
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

}  // namespace orthant
