// The optimizer's state of parameter groups: which names, for which elements.
#pragma once

#include <string>
#include <vector>

#include <orthant/optimizer.h>
#include <orthant/param.h>

#include "core/layers/owned_pieces.h"

namespace orthant {

// The optimizer that settings name. Errors: ConfigError where no plugin brings it.
const Optimizer& optimizer_of(const Settings& settings);

// What it says of a parameter. Errors: Error naming the optimizer and what is wrong with its answer.
Treatment treatment_of(const ParamSpec& spec, const Settings& settings);

// Allocates the state of what this rank owns of the group, and fills it with zeros.
void allocate_states(ParamGroup& group, const Settings& settings, Device& device, Stream& stream);

// A piece of a parameter's master weights, or of one of its states.
struct StatePiece {
  std::string state;  // empty: the master weights
  OwnedPiece piece;
  Tensor values;  // [piece.elements()]
  // The stream to use it on. home: the one that the group's state was acquired for; plugins' states stay on the device.
  Stream& stream(Stream& main, Stream& home) const { return values.on_host() ? home : main; }
};

// What this rank owns of a parameter of `group`: its weights first, then its states by name, then those of plugins
// ("plugins/PLUGIN/STATE"). REQUIRES: the group's state is acquired.
std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param);
// The same of elements [first, last) of the group's flat buffers alone.
std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param, std::int64_t first,
                                     std::int64_t last);

}  // namespace orthant
