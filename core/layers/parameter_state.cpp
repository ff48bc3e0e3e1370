#include "core/layers/parameter_state.h"

#include <orthant/settings.h>
#include <orthant/weight_average.h>

#include <algorithm>
#include <cctype>

#include "core/layers/state_storage.h"

namespace orthant {
namespace {

bool plain_name(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

void check_states(const std::vector<OptimizerState>& states, const std::string& optimizer,
                  const std::string& parameter) {
  for (auto state = states.begin(); state != states.end(); ++state) {
    require(plain_name(state->name) && state->name != "weight" && state->name != average_state,
            "optimizer '{}' has a state '{}' of '{}': expected a name of letters, digits and '_', other than 'weight' "
            "and '{}', which is the core's (optimizer.ema_decay)",
            optimizer, state->name, parameter, average_state);
    require(std::none_of(states.begin(), state, [&](const OptimizerState& other) { return other.name == state->name; }),
            "optimizer '{}' has two states '{}' of '{}'", optimizer, state->name, parameter);
    require(state->dtype == DType::f32 || state->dtype == DType::bf16 || state->dtype == DType::f64,
            "optimizer '{}': state '{}' of '{}' is {}, expected f32, bf16 or f64", optimizer, state->name, parameter,
            name_of(state->dtype));
    require(state->code == StateCode::none || state->dtype == DType::f32,
            "optimizer '{}': state '{}' of '{}' is {}, and only f32 has a code of 8 bits", optimizer, state->name,
            parameter, name_of(state->dtype));
  }
}

// The states of a group, each where its first parameter has it.
struct Laid {
  ParamState state;
  std::size_t parameters = 0;  // that have it
};

Laid& laid_for(std::vector<Laid>& all, const OptimizerState& spec, const Settings& settings) {
  for (Laid& known : all) {
    if (known.state.name == spec.name) {
      require(known.state.dtype == spec.dtype, "optimizer '{}': state '{}' is {} for some parameters, {} for others",
              settings.optimizer.name, spec.name, name_of(known.state.dtype), name_of(spec.dtype));
      if (known.state.code == spec.code) {
        return known;
      }
    }
  }
  return all.emplace_back(
      Laid{.state = {.name = spec.name, .dtype = spec.dtype, .code = spec.code, .values = {}, .runs = {}}});
}

void add_run(Laid& to, std::int64_t begin, std::int64_t count) {
  if (count <= 0) {
    return;
  }
  std::vector<ParamState::Run>& runs = to.state.runs;
  if (!runs.empty() && runs.back().begin + runs.back().count == begin) {
    runs.back().count += count;
  } else {
    runs.push_back({begin, count, to.state.elements});
  }
  to.state.elements += count;
}

}  // namespace

const Optimizer& optimizer_of(const Settings& settings) {
  return settings.catalogue->get<Optimizer>(settings.optimizer.name);
}

Treatment treatment_of(const ParamSpec& spec, const Settings& settings) {
  if (spec.frozen) {
    return {};
  }
  Treatment treatment = optimizer_of(settings).treatment(spec, settings.optimizer);
  check_states(treatment.states, settings.optimizer.name, spec.name);
  require(
      !treatment.whole || !treatment.replays,
      "optimizer '{}' treats '{}' as a whole and says that it replays updates: one element's depends on others' there",
      settings.optimizer.name, spec.name);
  choose_codes(treatment, spec, settings);
  if (settings.optimizer.ema_decay > 0) {
    treatment.states.push_back({.name = average_state});  // f32: 8 bits would lose what a step adds
  }
  return treatment;
}

std::span<const OptimizerState> own_states(const Treatment& treatment) {
  const std::span<const OptimizerState> states = treatment.states;
  const bool averaged = !states.empty() && states.back().name == average_state;
  return states.first(states.size() - (averaged ? 1 : 0));
}

void lay_states(ParamGroup& group, const Settings& settings) {
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
      laid.state.elements = group.owned_elements;
    }
    group.states.push_back(std::move(laid.state));
  }
}

// The byte 0 is the code of 0 in a block of zeros.
void allocate_states(ParamGroup& group, Device& device, Stream& stream) {
  const MemoryScope as(device, MemoryKind::states);
  for (ParamState& state : group.states) {
    const bool coded = state.code != StateCode::none;
    state.values = device.empty(coded ? DType::u8 : state.dtype, {coded ? state.bytes() : state.elements});
    stream.fill(state.values, 0);
  }
}

const ParamState* average_of(const ParamGroup& group) {
  const auto found = std::find_if(group.states.begin(), group.states.end(),
                                  [](const ParamState& state) { return state.name == average_state; });
  return found == group.states.end() ? nullptr : &*found;
}

void start_averages(const ParamGroup& group, Stream& home) {
  if (const ParamState* average = average_of(group)) {
    for (const ParamState::Run& run : average->runs) {
      const Tensor to = average->values.slice(run.at, {run.count}),
                   weights = group.master.slice(run.begin, {run.count});
      to.dtype() == weights.dtype() ? home.copy(to, weights) : home.cast(to, weights);
    }
  }
}

const ParamState& state_of(const ParamGroup& group, const std::string& name, std::int64_t begin, std::int64_t count) {
  for (const ParamState& state : group.states) {
    if (state.name == name && state.place(begin, count) >= 0) {
      return state;
    }
  }
  fail("'{}' has no state '{}' of its owned elements {} to {}", group.name, name, begin, begin + count);
}

DType StatePiece::dtype() const {
  return state.empty() || code != StateCode::none ? DType::f32 : values.dtype();
}

namespace {

Tensor wide_beside(const Tensor& stored, Shape shape) {
  Device& device = stored.device();
  return stored.on_host() ? device.host_empty(DType::f32, shape) : device.empty(DType::f32, shape);
}

}  // namespace

void StatePiece::download(void* numbers, Stream& s) const {
  if (code == StateCode::none && values.dtype() == dtype()) {
    s.download(numbers, values);
    return;
  }
  auto* to = static_cast<float*>(numbers);
  const std::int64_t elements = values.elements(), last = skip + piece.elements();
  for (std::int64_t at = 0; at < elements; at += most_widened) {
    const std::int64_t count = std::min(most_widened, elements - at);
    const Tensor wide = wide_beside(values, {count}), stored = values.slice(at, {count});
    if (code == StateCode::none) {
      s.cast(wide, stored);
    } else {
      s.decode_state(wide, stored, exponents.slice(at / state_block, {count / state_block}), code);
    }
    const std::int64_t begin = std::max(at, skip), end = std::min(at + count, last);
    s.download(to + (begin - skip), wide.slice(begin - at, {end - begin}));
  }
}

void StatePiece::upload(const void* numbers, const Param& param, const Settings& settings, Stream& s) const {
  if (code == StateCode::none && values.dtype() == dtype()) {
    s.upload(values, numbers);
    return;
  }
  const auto* from = static_cast<const float*>(numbers);
  const std::int64_t columns = piece.size[1], most_rows = std::max<std::int64_t>(most_widened / columns, 1);
  for (std::int64_t row = 0; row < piece.size[0]; row += most_rows) {
    const Shape shape{std::min(most_rows, piece.size[0] - row), columns};
    const std::int64_t begin = row * columns;
    const Tensor wide = wide_beside(values, shape), stored = values.slice(begin, shape);
    s.upload(wide, from + begin);
    if (code == StateCode::none) {
      s.cast(stored, wide);
    } else {
      s.encode_state(stored, exponents.slice(begin / state_block, {shape.elements() / state_block}), wide, code,
                     rounding_key(settings, param, state, loading_step),
                     {piece.offset[0] + row, piece.offset[1], param.spec.global[1]});
    }
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
    pieces.push_back({.state = "", .piece = piece, .values = group.master.slice(piece.begin, {piece.elements()})});
  }
  for (const ParamState& state : group.states) {
    for (const OwnedPiece& piece : owned) {
      const std::int64_t at = state.place(piece.begin, piece.elements());
      if (at < 0) {
        continue;
      }
      StatePiece& made = pieces.emplace_back(StatePiece{.state = state.name, .piece = piece, .values = {}});
      if (state.code == StateCode::none) {
        made.values = state.values.slice(at, {piece.elements()});
        continue;
      }
      made.code = state.code;
      made.skip = at % state_block;
      const std::int64_t blocks = (made.skip + piece.elements() + state_block - 1) / state_block;
      made.values = state.codes(at - made.skip, blocks * state_block);
      made.exponents = state.exponents(at - made.skip, blocks * state_block);
    }
  }
  for (const PluginState& state : group.plugin_states) {
    if (state.kind == StateKind::owned) {
      for (const OwnedPiece& piece : owned) {
        pieces.push_back(
            {.state = state.name, .piece = piece, .values = state.tensor.slice(piece.begin, {piece.elements()})});
      }
    }
  }
  return pieces;
}

}  // namespace orthant
