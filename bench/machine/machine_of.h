// A machine in the form of apps/cost/, made of what was measured; its file, and a table for readers.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "apps/cost/machine.h"
#include "bench/machine/measured.h"

namespace orthant::machine {

// The least squares of products, memory and links in the model's own terms. Practice::overlap and spread are not
// measured: on cores nothing hides, elsewhere they are what a fit begins with. Errors: as check().
cost::Machine machine_of(const Measured& measured);

// A file that cost::load_machine() reads. heading: lines of comment.
std::string machine_toml(const cost::Machine& machine, const std::string& heading);

// What was measured, beside what the machine file makes of it.
std::string text_of(const Measured& measured, const cost::Machine& machine);

}  // namespace orthant::machine
