#include "core/layers/parameter_state.h"

#include <orthant/settings.h>
#include <orthant/weight_average.h>

#include <algorithm>
#include <optional>

#include "core/layers/state_storage.h"

namespace orthant {
namespace {

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
      if (known.state.code == spec.code && known.state.over == spec.over) {
        return known;
      }
    }
  }
  return all.emplace_back(
      Laid{.state = {.name = spec.name, .dtype = spec.dtype, .code = spec.code, .values = {}, .over = spec.over}});
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

Shape shape_over(StateOver over, const Shape& global) {
  switch (over) {
    case StateOver::elements: return global;
    case StateOver::rows: return {global[0]};
    case StateOver::columns: return {global[1]};
    case StateOver::parameter: return {1};
  }
  fail("a state over {}", static_cast<int>(over));
}

namespace {

// Of this rank's slice of a parameter.
std::int64_t count_over(StateOver over, const Param& p) {
  return over == StateOver::rows ? p.size[0] : over == StateOver::columns ? p.size[1] : 1;
}

}  // namespace

void lay_states(ParamGroup& group, const Settings& settings) {
  std::vector<Laid> all;
  const std::int64_t owned_end = group.owned_begin + group.owned_elements;
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const Param& p = group.params[i];
    for (const OptimizerState& spec : treatment_of(p.spec, settings).states) {
      Laid& laid = laid_for(all, spec, settings);
      if (spec.over != StateOver::elements) {
        const std::int64_t numbers = count_over(spec.over, p);
        laid.state.numbers.push_back({.param = i, .count = numbers, .at = laid.state.elements});
        laid.state.elements += numbers;
        continue;
      }
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

namespace {

// Null: there is no such number of the parameter.
const ParamState::Numbers* find_numbers(const ParamState& state, std::size_t param) {
  const auto found = std::find_if(state.numbers.begin(), state.numbers.end(),
                                  [&](const ParamState::Numbers& numbers) { return numbers.param == param; });
  return found == state.numbers.end() ? nullptr : &*found;
}

}  // namespace

Tensor numbers_of(const ParamGroup& group, const OptimizerState& state, std::size_t param) {
  for (const ParamState& kept : group.states) {
    if (kept.name == state.name && kept.over == state.over) {
      if (const ParamState::Numbers* numbers = find_numbers(kept, param)) {
        return kept.values.slice(numbers->at, {numbers->count});
      }
    }
  }
  fail("'{}' has no state '{}' of '{}'", group.name, state.name, group.params[param].spec.name);
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

namespace {

struct Span {
  std::int64_t begin = 0, end = 0;
};

// Of the numbers of a slice those that go with its elements [begin, end).
Span numbers_with(StateOver over, const Param& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = p.size[1];
  switch (over) {
    case StateOver::rows:
      return p.offset[1] == 0 ? Span{(begin + columns - 1) / columns, (end + columns - 1) / columns} : Span();
    case StateOver::columns: return p.offset[0] == 0 ? Span{std::min(begin, columns), std::min(end, columns)} : Span();
    default:
      return p.offset[0] == 0 && p.offset[1] == 0 && begin == 0 ? Span{0, std::min<std::int64_t>(end, 1)} : Span();
  }
}

void add_numbers(std::vector<StatePiece>& to, const ParamGroup& group, const ParamState& state, const Param& p,
                 const std::optional<Span>& elements) {
  const ParamState::Numbers* const numbers = find_numbers(state, static_cast<std::size_t>(&p - group.params.data()));
  if (numbers == nullptr) {
    return;
  }
  Span span{0, numbers->count};
  if (elements.has_value()) {
    span = numbers_with(state.over, p, elements->begin, elements->end);
  }
  if (span.begin >= span.end) {
    return;
  }
  const std::int64_t offset = state.over == StateOver::rows      ? p.offset[0]
                              : state.over == StateOver::columns ? p.offset[1]
                                                                 : 0;
  const std::int64_t count = span.end - span.begin;
  to.push_back({.state = state.name,
                .global = shape_over(state.over, p.spec.global),
                .piece = {.offset = {offset + span.begin, 0}, .size = {count, 1}, .begin = 0},
                .values = state.values.slice(numbers->at + span.begin, {count})});
}

// elements: of the parameter's slice; nothing: all that is held.
std::vector<StatePiece> pieces_of(const ParamGroup& group, const Param& param, const std::vector<OwnedPiece>& owned,
                                  const std::optional<Span>& elements) {
  std::vector<StatePiece> pieces;
  const Shape& global = param.spec.global;
  for (const OwnedPiece& piece : owned) {
    pieces.push_back(
        {.state = "", .global = global, .piece = piece, .values = group.master.slice(piece.begin, {piece.elements()})});
  }
  for (const ParamState& state : group.states) {
    if (state.over != StateOver::elements) {
      add_numbers(pieces, group, state, param, elements);
      continue;
    }
    for (const OwnedPiece& piece : owned) {
      const std::int64_t at = state.place(piece.begin, piece.elements());
      if (at < 0) {
        continue;
      }
      StatePiece& made =
          pieces.emplace_back(StatePiece{.state = state.name, .global = global, .piece = piece, .values = {}});
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
        pieces.push_back({.state = state.name,
                          .global = global,
                          .piece = piece,
                          .values = state.tensor.slice(piece.begin, {piece.elements()})});
      }
    }
  }
  return pieces;
}

}  // namespace

std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param) {
  return pieces_of(group, param, owned_pieces(group, param), {});
}

std::vector<StatePiece> state_pieces(const ParamGroup& group, const Param& param, std::int64_t first,
                                     std::int64_t last) {
  const std::int64_t owned_end = group.owned_begin + group.owned_elements;
  const std::int64_t begin = std::max({first, group.owned_begin, param.begin}) - param.begin;
  const std::int64_t end = std::min({last, owned_end, param.begin + param.elements()}) - param.begin;
  return pieces_of(group, param, owned_pieces(group, param, first, last), Span{begin, std::max(begin, end)});
}

}  // namespace orthant
