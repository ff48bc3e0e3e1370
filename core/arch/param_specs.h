// ParamSpecs as the parts of a block need them.
#pragma once

#include <orthant/param.h>
#include <orthant/settings.h>

#include <optional>
#include <string>
#include <vector>

namespace orthant {

// Drawn with deviation `std`; split by nothing.
ParamSpec matrix_spec(std::string name, Region region, std::int64_t rows, std::int64_t columns, float std);

float base_std(const Settings& settings);  // model.init_std

// What a norm's weight begins with: so that it multiplies by 1.
Init norm_init(const Settings& settings);
// The model's norm: `stem`.weight and, for LayerNorm, `stem`.bias.
std::vector<ParamSpec> norm_specs(const Settings& settings, const std::string& stem);

// The input matrices [f, d] of an FFN with the model's activation (gate and up, or up alone); then the output one [d,
// f].
std::vector<ParamSpec> ffn_in_specs(const Settings& settings, const std::string& gate, const std::string& up,
                                    Region region, std::int64_t f, std::optional<std::int64_t> expert = {});
ParamSpec ffn_out_spec(const Settings& settings, const std::string& down, Region region, std::int64_t f,
                       std::optional<std::int64_t> expert = {});
// All three of the dense FFN `stem`: gate_proj, up_proj, down_proj.
std::vector<ParamSpec> ffn_specs(const Settings& settings, const std::string& stem, std::int64_t f);

// What is wrong with a parameter of a part of the block `stem`; empty: nothing.
std::string wrong_part_spec(const ParamSpec& spec, const std::string& stem);

}  // namespace orthant
