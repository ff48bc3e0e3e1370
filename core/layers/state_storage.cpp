#include "core/layers/state_storage.h"

#include <orthant/hash.h>
#include <algorithm>

#include "core/arch/links.h"
#include "core/layers/parameter_state.h"

namespace orthant {
namespace {

bool in_8_bits(const Settings& settings) {
  return settings.optimizer.state_dtype == StateType::eight_bits;
}

bool has_codes(const ParamSpec& spec, const Settings& settings) {
  const std::vector<OptimizerState> states = treatment_of(spec, settings).states;
  return std::any_of(states.begin(), states.end(), [](const OptimizerState& s) { return s.code != StateCode::none; });
}

bool rows_are_blocks(const ParamSpec& spec) {
  return spec.global.rank() == 2 && spec.global[1] % state_block == 0;
}

}  // namespace

void check_storage(const Settings& settings, const std::vector<Link>& links) {
  const bool no_master = settings.optimizer.master_weights == MasterWeights::none;
  if (!no_master && !in_8_bits(settings)) {
    return;
  }
  bool any_code = false;
  for (const LayerSpecs& layer : parameters_of(links)) {
    for (const ParamSpec& spec : layer.params) {
      if (treatment_of(spec, settings).whole) {
        throw SettingError(
            no_master ? "optimizer.master_weights" : "optimizer.state_dtype",
            fmt::format("the optimizer \"{}\" wants whole matrices ('{}'), which are updated with fp32 weights and "
                        "states\nwrite master_weights = \"fp32\" and state_dtype = \"fp32\", or another optimizer",
                        settings.optimizer.name, spec.name));
      }
      any_code = any_code || has_codes(spec, settings);
    }
  }
  if (in_8_bits(settings) && !any_code) {
    throw SettingError(
        "optimizer.state_dtype",
        fmt::format(
            "nothing would be stored in 8 bits: the optimizer \"{}\" has no state that may be, or no matrix of "
            "this model has rows of a multiple of {} elements\nwrite state_dtype = \"fp32\", or a model.d_model "
            "that is a multiple of {}",
            settings.optimizer.name, state_block, state_block));
  }
}

void choose_codes(Treatment& treatment, const ParamSpec& spec, const Settings& settings) {
  if (in_8_bits(settings) && rows_are_blocks(spec)) {
    return;
  }
  for (OptimizerState& state : treatment.states) {
    state.code = StateCode::none;
  }
}

std::int64_t share_unit_of(const ParamGroup& group, const Settings& settings) {
  const bool any = std::any_of(group.params.begin(), group.params.end(),
                               [&](const Param& p) { return has_codes(p.spec, settings); });
  return any ? state_block : 1;
}

// Of a group that is shared out, what each of its ranks would find: all refuse it, or none.
void check_blocks(const ParamGroup& group, const Settings& settings, const std::string& plugin) {
  const bool shared = group.owned_elements < group.elements;
  const std::int64_t end = group.owned_begin + group.owned_elements;
  if (group.owned_begin % group.share_unit != 0 || (end % group.share_unit != 0 && end < group.elements)) {
    throw ConfigError(
        fmt::format("plugin '{}' shares out '{}' so that a rank has elements {} to {}: states in 8 bits are shared out "
                    "in multiples of {} (ParamGroup::share_unit)",
                    plugin, group.name, group.owned_begin, end, group.share_unit));
  }
  for (const Param& p : group.params) {
    if (!has_codes(p.spec, settings)) {
      continue;
    }
    if (p.offset[1] % state_block != 0 || p.size[1] % state_block != 0) {
      throw SettingError(
          "optimizer.state_dtype",
          fmt::format(
              "ranks split the columns of '{}' so that one has {} from column {} on, within a block: {} columns "
              "have a scale of their states in common\nlet fewer ranks split them, or write state_dtype = "
              "\"fp32\"",
              p.spec.name, p.size[1], p.offset[1], state_block));
    }
    if (shared && p.begin % state_block != 0) {
      throw SettingError(
          "optimizer.state_dtype",
          fmt::format(
              "'{}' begins at element {} of '{}', whose states ranks share out, in the middle of a block: {} "
              "columns have a scale of their states in common\nmake biases and norms before it (model.head_dim, "
              "kv_heads) a multiple of {}, share out nothing (zero = 0), or write state_dtype = \"fp32\"",
              p.spec.name, p.begin, group.name, state_block, state_block));
    }
  }
}

RandomKey rounding_key(const Settings& settings, const Param& param, const std::string& state, std::int64_t step) {
  const std::string site = state.empty() ? param.spec.name : state + "/" + param.spec.name;
  return {settings.run.seed, Purpose::rounding, hash32(site), static_cast<std::uint32_t>(step)};
}

}  // namespace orthant
