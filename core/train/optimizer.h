// The optimizer's step over what this rank owns, and the learning-rate schedule.
#pragma once

#include "core/layers/parameter_store.h"

namespace orthant {

// Learning rate of step `step` (from 0): linear warm-up, then constant, cosine to min_lr, or inverse square root.
double learning_rate(const OptimizerSettings& settings, std::int64_t total_steps, std::int64_t step);

// One update of what this rank owns; then the keepers spread it. factor f32[1] multiplies the gradients; where it is
// NaN nothing changes. Matrices decay, norms and biases do not (ParamSpec::decay).
void optimizer_step(ParamStore& store, const Plan& plan, std::int64_t step, const Tensor& factor, Stream& stream);

}  // namespace orthant
