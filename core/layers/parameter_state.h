// The optimizer's state of parameter groups: which names, for which elements.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <orthant/optimizer.h>
#include <orthant/param_group.h>

#include "core/layers/owned_pieces.h"

namespace orthant {

struct Settings;

// The optimizer that settings name. Errors: ConfigError where no plugin brings it.
const Optimizer& optimizer_of(const Settings& settings);

// What it says of a parameter, with the codes that these settings ask for (state_storage.h), and behind its states that
// of the weights' moving average where there is one (orthant/weight_average.h); of a frozen one nobody asks it, and
// there is no state. Errors: Error naming the optimizer and what is wrong with its answer.
Treatment treatment_of(const ParamSpec& spec, const Settings& settings);
// Of its states those that the optimizer has asked for.
std::span<const OptimizerState> own_states(const Treatment& treatment);

// Names the states of what this rank owns of the group, without memory. Those over rows, columns and parameters are of
// all that it holds of the group: they are few beside the elements.
void lay_states(ParamGroup& group, const Settings& settings);
// Allocates them, and fills them with zeros.
void allocate_states(ParamGroup& group, Device& device, Stream& stream);

// The average of the weights of a group; null where it has none.
const ParamState* average_of(const ParamGroup& group);
// The averages begin as the weights. home: on which the group's state lives, which is acquired.
void start_averages(const ParamGroup& group, Stream& home);

// The state of this name that has owned elements [begin, begin + count). Errors: Error where there is none.
const ParamState& state_of(const ParamGroup& group, const std::string& name, std::int64_t begin, std::int64_t count);

// The state of this name, not over elements, of params[param] of the group, f32, say, [numbers].
Tensor numbers_of(const ParamGroup& group, const OptimizerState& state, std::size_t param);

// A state over this as a checkpoint has it, of a parameter of shape `global`: [rows], [columns] or [1].
Shape shape_over(StateOver over, const Shape& global);

// A piece of a parameter's weights, or of one of its states.
struct StatePiece {
  std::string state;  // empty: the weights that the optimizer updates
  Shape global;       // of what it is a piece of
  OwnedPiece piece;   // `begin` where that is over elements
  Tensor values;      // [piece.elements()], as they are stored
  // With a code `values` are whole blocks, the first of which begins `skip` elements before the piece.
  StateCode code = StateCode::none;
  Tensor exponents = {};
  std::int64_t skip = 0;

  // Of the numbers in a checkpoint: f32 of all that is stored in fewer bits.
  DType dtype() const;
  // The stream to use it on. home: the one that the group's state was acquired for; plugins' states stay on the device.
  Stream& stream(Stream& main, Stream& home) const { return values.on_host() ? home : main; }
  // The numbers, to and from the host's memory. What is stored in fewer bits is widened some at a time, in no more
  // memory than its update takes. REQUIRES, of upload: skip is 0, and the piece's rows are made of whole blocks.
  void download(void* numbers, Stream& s) const;
  void upload(const void* numbers, const Param& param, const Settings& settings, Stream& s) const;
};

// What this rank owns of a parameter of `group`: its weights first, then its states by name, then those of plugins
// ("plugins/PLUGIN/STATE"). Of what is not over elements: all that it holds. REQUIRES: the group's state is acquired;
// param is one of group.params.
std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param);
// The same of elements [first, last) of the group's flat buffers alone. A row's number goes with the first element of
// the row, a column's with that of the column, a parameter's with its first: so each goes with one element.
std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param, std::int64_t first,
                                     std::int64_t last);

}  // namespace orthant
