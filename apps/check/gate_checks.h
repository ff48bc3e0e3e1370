// What every gate must do, whatever it chooses by: a gate that a plugin adds to the catalogue, alone with made-up
// logits, outside of any training.
#pragma once

#include <string>

#include "apps/check/conformance.h"

#include <orthant/gate.h>

namespace orthant {

// On the guarded device: every output is written, choices are in range and distinct, padding is left out, weights,
// counts and shares are what GateChoice says, backward is the gradient (finite differences), the same inputs give the
// same bits, the state stays the same wherever it is updated; and it runs in a dry run. `settings`: of a model with
// experts whose moe.router is this gate.
Finding check_gate(const Settings& settings);

}  // namespace orthant
