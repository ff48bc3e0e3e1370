// Projections to heads and back, as both attentions of a block have them.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <orthant/part.h>
#include <orthant/settings.h>
#include <orthant/sizes.h>

namespace orthant::encoder_decoder {

inline constexpr Site attention_enter{Region::attention, Side::enter}, attention_leave{Region::attention, Side::leave};
inline constexpr Site core_enter{Region::attention_core, Side::enter}, core_leave{Region::attention_core, Side::leave};

// `stem`.q, .k, .v [h c, d] and .o [d, h c], without biases.
inline std::vector<ParamSpec> projections(const Settings& s, const std::string& stem) {
  const std::int64_t h = s.model.heads, inner = h * head_dim_of(s), d = s.model.d_model;
  const float std = static_cast<float>(s.model.init_std);
  std::vector<ParamSpec> specs;
  for (const char* name : {".q.weight", ".k.weight", ".v.weight"}) {
    specs.push_back({.name = stem + name, .global = {inner, d}, .region = Region::attention, .std = std});
    specs.back().split[0] = Dim::head;
    specs.back().units[0] = h;
  }
  specs.push_back(
      {.name = stem + ".o.weight", .global = {d, inner}, .region = Region::attention, .std = residual_std(s)});
  specs.back().split[1] = Dim::head;
  specs.back().units[1] = h;
  return specs;
}

// Of one token: four projections, and products with `seen` keys.
inline double attention_flops(const Settings& s, double seen) {
  const double inner = static_cast<double>(s.model.heads * head_dim_of(s));
  return 8 * static_cast<double>(s.model.d_model) * inner + 4 * inner * seen;
}

// What scores are multiplied by. 0 means 1 / sqrt(c), as everywhere.
inline float score_scale(const Settings& s) {
  return static_cast<float>(s.model.attention_scale > 0 ? s.model.attention_scale
                                                        : 1 / std::sqrt(static_cast<double>(head_dim_of(s))));
}

}  // namespace orthant::encoder_decoder
