#include "apps/lm/layout.h"

#include <algorithm>

#include <orthant/gate.h>

#include "apps/lm/divided_model.h"
#include "core/arch/decoder.h"
#include "core/arch/rotary.h"
#include "core/session/session.h"

namespace orthant {

std::vector<PluginRequest> layout_of(const std::string& where, const Config& config, const PluginKeys& plugin_keys,
                                     const PluginKinds& plugin_kinds) {
  const bool of_run = where == "run";
  const std::vector<PluginRequest> found =
      of_run ? config.plugins : load_config(where, {"data.source=\"none\""}, plugin_keys, plugin_kinds).plugins;
  if (found.empty()) {
    throw ConfigError(fmt::format(
        "--layout {}: {} no [plugins] table, so nothing divides the model; leave --layout "
        "out, or {}",
        where, of_run ? "the run has" : "the file has", of_run ? "add one: --set plugins.NAME.size=2" : "write one"));
  }
  return found;
}

Config for_generation(Config config, const std::vector<PluginRequest>& layout) {
  Settings& s = config.settings;
  if (stepwise_of(s) == nullptr) {
    require_decoder(s, "generation");
  } else if (!layout.empty()) {
    throw SettingError("model.kind", fmt::format("[model] kind: a model of kind \"{}\" answers on one rank: leave "
                                                 "--layout out",
                                                 s.model.kind));
  }
  keep_rotary_angles(s);
  if (s.moe.experts > 0) {
    if (gate_of(s).config(s).experts_choose) {
      throw ConfigError(fmt::format(
          "moe.router = \"{}\": experts choose among tokens that generation does not have yet, so this model "
          "cannot be fed token by token; train it with another router, or evaluate it with `orthant eval`",
          s.moe.router));
    }
    s.moe.group_tokens = 1;
    s.moe.capacity_factor = 0;  // a token alone has a seat with every expert that it chooses
  }
  s.memory.limit = 0;
  s.train.objective = "";
  s.train.freeze = {"*"};  // no gradients, no optimizer state, which a run may keep in 8 bits
  s.optimizer = {};
  config.plugins = layout;
  if (layout.empty()) {
    return config;
  }
  s.own.erase("distil");
  if (s.model.positions != Positions::learned) {
    s.data.sequence_length = 1;  // rows of a pass are cut anywhere, not between sequences
  }
  // Rows of a pass are the layout's own business (DividedModel::row_multiple): the batch is one that always divides.
  const std::int64_t ranks = Session(config).world_size();
  s.batch = {.sequences = ranks * ranks * ranks, .micro_batch = ranks, .grow_after = {}, .grow_to = {}};
  return config;
}

int generation_ranks(const Config& config) {
  Session session(config);
  for (const AxisSpec& axis : session.mesh().axes()) {
    const auto splits = [&](Dim dim) {
      return axis.size > 1 && std::find(axis.splits.begin(), axis.splits.end(), dim) != axis.splits.end();
    };
    if (splits(Dim::position)) {
      throw ConfigError(
          fmt::format("axis '{0}' divides the positions of a sequence among {1} ranks, and generation "
                      "adds one position at a time; give --layout a file without [plugins.{0}]",
                      axis.name, axis.size));
    }
    if (axis.independent && axis.size > 1) {
      throw ConfigError(
          fmt::format("axis '{0}' trains {1} models apart from each other, and one of them can answer; "
                      "give --layout a file without [plugins.{0}]",
                      axis.name, axis.size));
    }
  }
  Config divided = config;
  divided.settings.train.freeze.clear();  // parameters of which none is trained are refused
  return check_layout(divided);
}

}  // namespace orthant
