// The moving average of the weights (optimizer.ema_decay): a state of f32 numbers that the core keeps beside those of
// the optimizer, whichever it is, and updates behind it.
//
// An optimizer does not see it: UpdateSlice::state has the optimizer's own states. A keeper finds it in
// ParamGroup::states, and moves it as any other; one that makes up for updates (Optimizer::replay) moves the average
// after each of them.
#pragma once

#include <cstdint>

#include <orthant/abi/optimizer.h>
#include <orthant/ops.h>

namespace orthant {

struct OptimizerSettings;

// Its name among the states: a checkpoint has it as optimizer/ema/PARAMETER.
inline constexpr const char* average_state = "ema";

// d of step `step`, from 0: the smaller of optimizer.ema_decay and (1 + step) / (10 + step). A young average forgets
// the first weights soon. REQUIRES: ema_decay > 0.
double average_decay(const OptimizerSettings& settings, std::int64_t step);

// average = d average + (1 - d) weights, with d of `step`, both f32 [n]: each element's result depends on the element
// alone. Nothing changes where finite f32 [1] is NaN. What equals the weights stays equal, to rounding.
void move_average(const Tensor& average, const Tensor& weights, const Tensor& finite, const OptimizerSettings& settings,
                  std::int64_t step, Stream& s);

}  // namespace orthant
