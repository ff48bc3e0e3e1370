// The figures of runs. Each adds to a section what the runs have, and nothing where they have none of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/report/page.h"
#include "apps/report/run_data.h"

namespace orthant::report {

// Losses against seconds, steps, tokens and FLOPs, and those of the validation sets.
void add_losses(const std::vector<RunData>& runs, Section& section);
// Learning rate, gradient norm, balance and z loss.
void add_optimization(const std::vector<RunData>& runs, Section& section);
// Drops and the busiest expert, of all runs together.
void add_load(const std::vector<RunData>& runs, Section& section);
// Tokens per second, the time of a step, and memory by kind.
void add_costs(const std::vector<RunData>& runs, Section& section);
// Where the time of traced steps went, rank by rank (trace/summary.json). Errors: ConfigError for what it cannot
// understand.
void add_timeline(const RunData& run, Section& section);
// Of one run with experts: load by layer, expert and time; what `routing` and `alarms` tell.
void add_routing(const RunData& run, Section& section);
// Of one run: what its experts are chosen for (routing/experts.json). Errors: ConfigError for what it cannot
// understand.
void add_expert_use(const RunData& run, Section& section);

// The names of the validation sets of all runs, and the last loss of one.
std::vector<std::string> validation_sets(const std::vector<RunData>& runs);
std::optional<double> last_of_set(const RunData& run, const std::string& set);

// "nats per byte"; "nats, each run's own" where runs have several units.
std::string unit_of_losses(const std::vector<RunData>& runs);
// A sentence where some of the losses cannot be ranked; else empty.
std::string note_of_units(const std::vector<RunData>& runs);

// What trains the runs again, a line each.
std::string commands_of(const std::vector<RunData>& runs);

}  // namespace orthant::report
