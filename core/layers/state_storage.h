// How weights and optimizer states are stored where settings ask for fewer bits (optimizer.master_weights,
// state_dtype).
//
// Without master weights the bf16 weight is all there is. With states in 8 bits (orthant/state_code.h) those of
// matrices are stored in blocks of 32 columns; those of norms, biases and matrices whose rows are not whole blocks stay
// as they are. Which ones that are depends on the model alone. Checkpoints hold f32 of all of them, so that they load
// with any storage.
#pragma once

#include <orthant/optimizer.h>
#include <orthant/param_group.h>
#include <orthant/plan.h>

namespace orthant {

// Refuses what cannot be. Errors: SettingError where the optimizer wants whole matrices, or where nothing of the model
// could be stored in 8 bits.
void check_storage(const Settings& settings, const std::vector<Link>& links);

// What of an optimizer's answer holds with these settings: states that stay in f32 lose their code.
void choose_codes(Treatment& treatment, const ParamSpec& spec, const Settings& settings);

// ParamGroup::share_unit.
std::int64_t share_unit_of(const ParamGroup& group, const Settings& settings);

// plugin: whose keeper shares the group out. Errors: SettingError where slices, or what ranks own of them, begin or end
// within a block; ConfigError where the plugin has taken no notice of share_unit.
void check_blocks(const ParamGroup& group, const Settings& settings, const std::string& plugin);

// The random numbers that round a parameter's weights (state empty) or one of its states in `step`.
RandomKey rounding_key(const Settings& settings, const Param& param, const std::string& state, std::int64_t step);

// Elements whose f32 numbers are in memory at a time, where they are stored in fewer bits.
inline constexpr std::int64_t most_widened = 1 << 20;
static_assert(most_widened % state_block == 0);

// No step of a run: numbers that are loaded.
inline constexpr std::int64_t loading_step = 0xFFFFFFFF;

}  // namespace orthant
