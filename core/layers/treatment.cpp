// What an optimizer says of a parameter, checked.
#include <orthant/settings.h>
#include <orthant/weight_average.h>

#include <algorithm>
#include <cctype>

#include "core/layers/parameter_state.h"
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

// What is not of elements: states, and what they are made from.
void check_measures(const Treatment& treatment, const std::string& optimizer, const ParamSpec& spec) {
  const int dimensions = spec.global.rank();
  for (const OptimizerState& state : treatment.states) {
    if (state.over == StateOver::elements) {
      continue;
    }
    require(state.over == StateOver::parameter || dimensions == 2,
            "optimizer '{}': state '{}' of '{}' is over rows or columns of {}: expected 2 dimensions", optimizer,
            state.name, spec.name, spec.global);
    require(state.code == StateCode::none,
            "optimizer '{}': state '{}' of '{}' has a code of 8 bits: expected one over elements", optimizer,
            state.name, spec.name);
    require(!treatment.measures.empty(),
            "optimizer '{}': state '{}' of '{}' is not over elements, and there is nothing to make it from: name what "
            "is measured in Treatment::measures",
            optimizer, state.name, spec.name);
  }
  require(treatment.measures.empty() || (!treatment.whole && !treatment.replays),
          "optimizer '{}' measures '{}' and {}: expected one of the two", optimizer, spec.name,
          treatment.whole ? "treats it as a whole" : "says that it replays its updates");
  for (const Measure& measure : treatment.measures) {
    require(measure.rows || measure.columns || measure.parameter,
            "optimizer '{}' measures '{}' over nothing: expected rows, columns or the parameter", optimizer, spec.name);
    require(dimensions == 2 || (!measure.rows && !measure.columns),
            "optimizer '{}' measures '{}' over rows or columns of {}: expected 2 dimensions", optimizer, spec.name,
            spec.global);
    require(measure.how == ReduceOp::sum || measure.how == ReduceOp::max,
            "optimizer '{}' measures '{}' by neither sum nor max", optimizer, spec.name);
    const auto in_round = [&](int round) {
      return std::any_of(treatment.measures.begin(), treatment.measures.end(),
                         [&](const Measure& other) { return other.round == round; });
    };
    require(measure.round == 0 || (measure.round > 0 && in_round(measure.round - 1)),
            "optimizer '{}' measures '{}' in round {}: expected rounds from 0 on, without gaps", optimizer, spec.name,
            measure.round);
  }
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
  check_measures(treatment, settings.optimizer.name, spec);
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

}  // namespace orthant
