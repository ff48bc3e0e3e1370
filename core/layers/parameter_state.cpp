#include "core/layers/parameter_state.h"

#include <algorithm>
#include <cctype>

namespace orthant {
namespace {

bool plain_name(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

void check_states(const std::vector<OptimizerState>& states, const std::string& optimizer,
                  const std::string& parameter) {
  for (auto state = states.begin(); state != states.end(); ++state) {
    require(plain_name(state->name) && state->name != "weight",
            "optimizer '{}' has a state '{}' of '{}': expected a name of letters, digits and '_', other than 'weight'",
            optimizer, state->name, parameter);
    require(std::none_of(states.begin(), state, [&](const OptimizerState& other) { return other.name == state->name; }),
            "optimizer '{}' has two states '{}' of '{}'", optimizer, state->name, parameter);
    require(state->dtype == DType::f32 || state->dtype == DType::bf16 || state->dtype == DType::f64,
            "optimizer '{}': state '{}' of '{}' is {}, expected f32, bf16 or f64", optimizer, state->name, parameter,
            name_of(state->dtype));
  }
}

// The states of a group, each where its first parameter has it, without memory.
struct Laid {
  ParamState state;
  DType dtype;
  std::int64_t elements = 0;
  std::size_t parameters = 0;  // that have it
};

Laid& laid_for(std::vector<Laid>& all, const OptimizerState& spec, const Settings& settings) {
  const auto known = std::find_if(all.begin(), all.end(), [&](const Laid& l) { return l.state.name == spec.name; });
  if (known == all.end()) {
    return all.emplace_back(Laid{.state = {.name = spec.name, .values = {}, .runs = {}}, .dtype = spec.dtype});
  }
  require(known->dtype == spec.dtype, "optimizer '{}': state '{}' is {} for some parameters, {} for others",
          settings.optimizer.name, spec.name, name_of(known->dtype), name_of(spec.dtype));
  return *known;
}

void add_run(Laid& to, std::int64_t begin, std::int64_t count) {
  if (count <= 0) {
    return;
  }
  std::vector<ParamState::Run>& runs = to.state.runs;
  if (!runs.empty() && runs.back().begin + runs.back().count == begin) {
    runs.back().count += count;
  } else {
    runs.push_back({begin, count, to.elements});
  }
  to.elements += count;
}

}  // namespace

const Optimizer& optimizer_of(const Settings& settings) {
  return settings.catalogue->get<Optimizer>(settings.optimizer.name);
}

Treatment treatment_of(const ParamSpec& spec, const Settings& settings) {
  Treatment treatment = optimizer_of(settings).treatment(spec, settings.optimizer);
  check_states(treatment.states, settings.optimizer.name, spec.name);
  require(
      !treatment.whole || !treatment.replays,
      "optimizer '{}' treats '{}' as a whole and says that it replays updates: one element's depends on others' there",
      settings.optimizer.name, spec.name);
  return treatment;
}

void allocate_states(ParamGroup& group, const Settings& settings, Device& device, Stream& stream) {
  std::vector<Laid> all;
  const std::int64_t owned_end = group.owned_begin + group.owned_elements;
  for (const Param& p : group.params) {
    for (const OptimizerState& spec : treatment_of(p.spec, settings).states) {
      Laid& laid = laid_for(all, spec, settings);
      ++laid.parameters;
      const std::int64_t begin = std::max(p.begin, group.owned_begin);
      add_run(laid, begin - group.owned_begin, std::min(p.begin + p.elements(), owned_end) - begin);
    }
  }
  for (Laid& laid : all) {
    if (laid.parameters == group.params.size()) {  // padding too: one run, whatever keepers make of it
      laid.state.runs = {{0, group.owned_elements, 0}};
      laid.elements = group.owned_elements;
    }
    const MemoryScope as(device, MemoryKind::states);
    laid.state.values = device.empty(laid.dtype, {laid.elements});
    stream.fill(laid.state.values, 0);
    group.states.push_back(std::move(laid.state));
  }
}

std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param) {
  return state_pieces(group, param, 0, group.padded);
}

std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param, std::int64_t first,
                                     std::int64_t last) {
  const std::vector<OwnedPiece> owned = owned_pieces(group, param, first, last);
  std::vector<StatePiece> pieces;
  for (const OwnedPiece& piece : owned) {
    pieces.push_back({"", piece, group.master.slice(piece.begin, {piece.elements()})});
  }
  for (const ParamState& state : group.states) {
    for (const OwnedPiece& piece : owned) {
      if (const Tensor values = state.slice(piece.begin, piece.elements()); values.defined()) {
        pieces.push_back({state.name, piece, values});
      }
    }
  }
  for (const PluginState& state : group.plugin_states) {
    if (state.kind == StateKind::owned) {
      for (const OwnedPiece& piece : owned) {
        pieces.push_back({state.name, piece, state.tensor.slice(piece.begin, {piece.elements()})});
      }
    }
  }
  return pieces;
}

}  // namespace orthant
